# SPDX-License-Identifier: MIT
"""Chains of operations on large tensors, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: Elements: of a few tensors, they stay in a processor's own cache from one operation to the next.
AT_ONCE = 1 << 17


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of all tensors, which have one shape. On a device, or where they are not contiguous, all at
    once."""
    first = tensors[0]
    if first.device.type != "cpu" or first.numel() <= AT_ONCE or not all(each.is_contiguous() for each in tensors):
        yield tensors
    else:
        yield from zip(*(each.view(-1).split(AT_ONCE) for each in tensors), strict=True)
