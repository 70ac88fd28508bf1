# SPDX-License-Identifier: MIT
"""Several parameters as one: their values, gradients and state in one flat tensor each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

#: Each parameter begins at such an address within the flat tensor, as in an allocation of its own: matrix products are
#: slower from others. The elements in between have gradients of zero.
_ALIGNMENT_BYTES = 64
#: Elements of a bucket. A longer one is slower on a CPU: the operations of a step find nothing in the cache any more.
#: Nor is anything gained by joining a parameter that is as long. On other devices an operation costs a launch.
_LONGEST = {"cpu": 2**16}
_LONGEST_ELSEWHERE = 2**20

State = Mapping[str, Any]


def is_flat(name: str, value: Any, parameter: torch.Tensor) -> bool:
    """Is a part of a parameter's state one value for each element? "step" never is: torch keeps it as a tensor."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and name != "step"


def groups(
    parameters: Sequence[torch.Tensor], state_of: Callable[[torch.Tensor], State]
) -> Iterator[list[torch.Tensor]]:
    """Parts of a group of parameters. Each is to be joined; a parameter that gains nothing by that is alone.

    Raises:
        ValueError: as :func:`signature`.
    """
    alike = defaultdict(list)
    for parameter in parameters:
        alike[signature(parameter, state_of(parameter))].append(parameter)
    for some in alike.values():
        longest = _LONGEST.get(some[0].device.type, _LONGEST_ELSEWHERE)
        part: list[torch.Tensor] = []
        length = 0
        for parameter in some:
            if part and length + parameter.numel() > longest:
                yield part
                part, length = [], 0
            part.append(parameter)
            length += parameter.numel()
        yield part


def signature(parameter: torch.Tensor, state: State) -> tuple[Any, ...]:
    """Parameters of a group may share a bucket where this is equal: what is not flat in their states is one value.

    Raises:
        ValueError: a part of the state is neither a value for each element nor one value.
    """
    parts = [(name, _kept_once(name, value, parameter)) for name, value in sorted(state.items())]
    return (parameter.dtype, parameter.device, *parts)


def _kept_once(name: str, value: Any, parameter: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        if is_flat(name, value, parameter):
            return value.dtype, value.device
        if value.numel() == 1:
            return value.dtype, value.device, value.item()
        shapes = f"the shape {tuple(value.shape)} for a parameter of {tuple(parameter.shape)}"
        raise ValueError(f"the optimizer's state {name!r} has {shapes}: it is not elementwise, and cannot be fused")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"the optimizer's state {name!r} is a {type(value).__name__}, which cannot be fused")


class Bucket:
    """Parameters of one :func:`signature`. Their data become views of :attr:`flat`."""

    def __init__(self, parameters: Sequence[torch.Tensor], states: Sequence[State]) -> None:
        self.parameters = list(parameters)
        self._offsets, self._length = _places(self.parameters)
        values = self._joined([parameter.data for parameter in self.parameters])
        self.flat = torch.nn.Parameter(values)
        self._gradient = torch.zeros_like(values)
        self._gradients = self._views(self._gradient)
        for parameter, view in zip(self.parameters, self._views(values), strict=True):
            parameter.data = view
        self.state = {name: self._whole(name, states) for name in states[0]}

    def gather(self) -> None:
        """Copies the gradients, which may be anywhere: DDP's are views of its buckets, autograd's new at each step."""
        torch._foreach_copy_(self._gradients, [parameter.grad for parameter in self.parameters])
        self.flat.grad = self._gradient

    def states(self, state: State) -> list[dict[str, Any]]:
        """Each parameter's part of the state of :attr:`flat`: views, and copies of what all share.

        Raises:
            ValueError: as :func:`signature`.
        """
        signature(self.flat, state)
        parts: list[dict[str, Any]] = [{} for _ in self.parameters]
        for name, value in state.items():
            flat = is_flat(name, value, self.flat)
            values = self._views(value) if flat else [_copy(value) for _ in parts]
            for part, own in zip(parts, values, strict=True):
                part[name] = own
        return parts

    def _whole(self, name: str, states: Sequence[State]) -> Any:
        """One part of the state of :attr:`flat`."""
        first = states[0][name]
        flat = is_flat(name, first, self.parameters[0])
        return self._joined([state[name] for state in states]) if flat else _copy(first)

    def _joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        flat = tensors[0].new_zeros(self._length)
        torch._foreach_copy_(self._views(flat), list(tensors))
        return flat

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Parts of a flat tensor, with the parameters' shapes and orders of dimensions in memory."""
        return [
            flat.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride(), offset)
            for parameter, offset in zip(self.parameters, self._offsets, strict=True)
        ]


def _places(parameters: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Where each parameter begins, and the length of all, in elements."""
    offsets, length = [], 0
    for parameter in parameters:
        offsets.append(length)
        unit = max(1, _ALIGNMENT_BYTES // parameter.element_size())
        length += -(-parameter.numel() // unit) * unit
    return offsets, length


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
