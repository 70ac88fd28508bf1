# SPDX-License-Identifier: MIT
"""What an algorithm keeps for the parameters of a bucket.

DDP cuts gradients into buckets anew after the first step, so that state by the bucket's number would go to other
parameters. It is by parameter here, in flat tensors of the buckets' layouts, which the compressed collectives take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ._grad_scaler import scaled

Span = tuple[int, int]  # first element in the bucket, and their number


@dataclass
class Layout:
    """Where a bucket has its parameters, and its flat state."""

    spans: dict[nn.Parameter, Span]
    exact: tuple[Span, ...]  # of parameters that stay exact; neighbours are joined
    flat: torch.Tensor | None  # float32, an element for each one of the bucket
    has_moved: bool  # what is in it was at other places of a bucket, or comes from a checkpoint

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        """All that is flat."""
        return () if self.flat is None else (self.flat,)

    def parts(self, flat: torch.Tensor, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """Of a tensor with the bucket's elements, those of some parameters."""
        return [flat[start : start + count] for start, count in (self.spans[each] for each in parameters)]


class Layouts:
    """The layouts of a model's buckets; with flat state, or without."""

    def __init__(self, names: Mapping[nn.Parameter, str], keeps_state: bool, exact_one_dimensional: bool) -> None:
        self._names = dict(names)
        self._keeps_state = keeps_state
        self._exact_one_dimensional = exact_one_dimensional
        self._layouts: dict[tuple[nn.Parameter, ...], Layout] = {}
        self._state: dict[nn.Parameter, torch.Tensor] = {}  # one-dimensional parts of the flat tensors

    def of(self, bucket: Any) -> Layout:
        """A ``GradBucket``'s; made when its parameters are first seen together."""
        parameters = tuple(bucket.parameters())
        known = self._layouts.get(parameters)
        return known if known is not None else self._made(bucket, parameters)

    def have_any(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a bucket has had a parameter of this optimizer."""
        return any(each in self._state for group in optimizer.param_groups for each in group["params"])

    def scale(self, factor: float) -> None:
        """Multiplies all state."""
        for state in self._state.values():
            scaled(state, factor)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Without parameters that DDP has in its buckets, but that were not trained when the algorithm began."""
        known = {parameter: state for parameter, state in self._state.items() if parameter in self._names}
        return {self._names[parameter]: state.clone() for parameter, state in known.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Nothing where no state is kept. Raises ValueError: it names other parameters, or has other sizes."""
        parameters = {name: parameter for parameter, name in self._names.items()}
        for name, tensor in state.items():
            if name not in parameters or tensor.numel() != parameters[name].numel():
                raise ValueError(
                    f"bagua_net.algorithms: load_state_dict: the state has {tensor.numel()} elements for {name}; the "
                    f"model has {parameters[name].numel() if name in parameters else 'no such parameter'}"
                )
        if not self._keeps_state:
            return
        for layout in self._layouts.values():
            layout.has_moved = True
        for parameter, name in self._names.items():
            if name in state:
                self._put(parameter, state[name])
            elif parameter in self._state:
                self._state[parameter].zero_()

    def _put(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        if parameter in self._state:
            self._state[parameter].copy_(value)
        else:  # no bucket has had it yet
            self._state[parameter] = value.to(device=parameter.device, dtype=torch.float32).clone()

    def _made(self, bucket: Any, parameters: tuple[nn.Parameter, ...]) -> Layout:
        buffer = bucket.buffer()
        first = buffer.storage_offset()
        spans = {
            parameter: (gradient.storage_offset() - first, gradient.numel())
            for parameter, gradient in zip(parameters, bucket.gradients(), strict=True)
        }
        flat = torch.zeros(buffer.numel(), dtype=torch.float32, device=buffer.device) if self._keeps_state else None
        has_moved = not self._state.keys().isdisjoint(parameters)
        for parameter, (start, count) in spans.items():
            if flat is None:
                break
            part = flat[start : start + count]
            if parameter in self._state:
                part.copy_(self._state[parameter])
            self._state[parameter] = part
        self._forget(spans)
        made = Layout(spans, self._exact(spans), flat, has_moved)
        self._layouts[parameters] = made
        return made

    def _forget(self, spans: Mapping[nn.Parameter, Span]) -> None:
        """Layouts of earlier buckets with any of these parameters: their state has moved."""
        for parameters in [each for each in self._layouts if any(parameter in spans for parameter in each)]:
            del self._layouts[parameters]

    def _exact(self, spans: Mapping[nn.Parameter, Span]) -> tuple[Span, ...]:
        if not self._exact_one_dimensional:
            return ()
        return joined(span for parameter, span in spans.items() if parameter.dim() < 2)


def joined(spans: Any) -> tuple[Span, ...]:
    """The same elements in as few spans as possible, in order."""
    out: list[Span] = []
    for start, count in sorted(spans):
        if out and sum(out[-1]) == start:
            out[-1] = (out[-1][0], out[-1][1] + count)
        else:
            out.append((start, count))
    return tuple(out)
