# SPDX-License-Identifier: MIT
"""Chains of operations on large tensors, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: Elements: of a few tensors, they stay in a processor's own cache from one operation to the next.
CHUNK_ELEMENTS = 1 << 17
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of all tensors, which have one shape. On a device, or where tensors have gaps, different
    strides or a class of their own (DTensor), all at once."""
    first = tensors[0]
    alike = all(type(each) in _PLAIN and each.stride() == first.stride() for each in tensors)
    if first.device.type != "cpu" or first.numel() <= CHUNK_ELEMENTS or not (alike and is_dense(first)):
        yield tensors
    else:
        yield from zip(*(_in_memory(each).split(CHUNK_ELEMENTS) for each in tensors), strict=True)


def is_dense(x: torch.Tensor) -> bool:
    """Its elements lie side by side and none twice, in whatever order: contiguous, or channels_last."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _in_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in the order of their addresses."""
    return x.as_strided((x.numel(),), (1,))
