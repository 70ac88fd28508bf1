# SPDX-License-Identifier: MIT
"""Parameters as one vector of float32 in the memory of the host, whatever their device, type and strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

Span = tuple[int, int]  # first element, and the one after the last


class _Part(NamedTuple):
    """Where a parameter and a span meet."""

    parameter: nn.Parameter
    within: slice  # elements of the parameter
    of_span: slice  # the same ones, from the first element of the span


class Flat:
    """The vector of a model's parameters, in the order of their names' mapping."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self.elements = sum(parameter.numel() for parameter in self._parameters.values())

    def read(self, span: Span) -> torch.Tensor:
        """A copy of these elements."""
        out = torch.empty(span[1] - span[0], dtype=torch.float32, device="cpu")
        with torch.no_grad():
            for part in self._parts(span):
                out[part.of_span].copy_(part.parameter.reshape(-1)[part.within])
        return out

    def write(self, span: Span, values: torch.Tensor) -> None:
        """Sets these elements, rounded to the parameters' type."""
        with torch.no_grad():
            for part in self._parts(span):
                whole = part.parameter.reshape(-1)  # a copy where the strides allow no view
                whole[part.within].copy_(values[part.of_span])
                if whole.data_ptr() != part.parameter.data_ptr():
                    part.parameter.copy_(whole.view(part.parameter.shape))

    def rounded(self, span: Span, values: torch.Tensor) -> torch.Tensor:
        """What :meth:`read` gives after :meth:`write` of these values."""
        out = torch.empty_like(values)
        for part in self._parts(span):
            out[part.of_span].copy_(values[part.of_span].to(part.parameter.dtype))
        return out

    def places(self, span: Span, wanted: Sequence[bool]) -> list[slice]:
        """Where, within the span, the elements are of the wanted ones among the parameters."""
        which = {parameter for parameter, is_wanted in zip(self._parameters.values(), wanted, strict=True) if is_wanted}
        return [part.of_span for part in self._parts(span) if part.parameter in which]

    def by_name(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A copy of a vector's elements for each parameter, in its shape."""
        parts = vector.split([parameter.numel() for parameter in self._parameters.values()])
        return {
            name: part.clone().view(parameter.shape)
            for (name, parameter), part in zip(self._parameters.items(), parts, strict=True)
        }

    def from_names(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The vector that :meth:`by_name` took.

        Raises:
            ValueError: the names or shapes are not those of the parameters.
        """
        reason = difference(tensors, self._parameters)
        if reason:
            raise ValueError(f"bagua_net.algorithms: load_state_dict: {reason}; begin without the state")
        return torch.cat([tensors[name].reshape(-1).to("cpu", torch.float32) for name in self._parameters])

    def _parts(self, span: Span) -> Iterator[_Part]:
        start = 0
        for parameter in self._parameters.values():
            end = start + parameter.numel()
            first, last = max(start, span[0]), min(end, span[1])
            if first < last:
                yield _Part(parameter, slice(first - start, last - start), slice(first - span[0], last - span[0]))
            start = end


def difference(there: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor]) -> str:
    """The first parameter whose shape in the state differs from that in the model, in words. Empty: none differs."""
    for name in [*here, *there]:
        in_model = tuple(here[name].shape) if name in here else "no such parameter"
        in_state = tuple(there[name].shape) if name in there else "no such parameter"
        if in_model != in_state:
            return f"{name} has the shape {in_state} in the state, and {in_model} in the model"
    return ""
