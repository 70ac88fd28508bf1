# SPDX-License-Identifier: MIT
"""What the codec accepts. The other modules rely on it: the library and the kernels take addresses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT32 = (torch.float32,)
BYTES = (torch.uint8,)


def checked(tensor: Any, name: str, dtypes: Collection[torch.dtype], like: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor of one dimension without its history, so that it can be written.

    Args:
        like: a tensor that is on the same device.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it has another type, shape or device, or is not contiguous.
    """
    _check(tensor, name, dtypes, like)
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"codec: {name} has the shape {tuple(tensor.shape)} and the strides {tensor.stride()}; "
            "give a contiguous tensor of one dimension"
        )
    return _without_history(tensor)


def checked_rows(rows: Any, name: str) -> torch.Tensor:
    """The same for bytes in rows, which may be parts of a larger tensor's rows."""
    _check(rows, name, BYTES, None)
    if rows.dim() != 2 or rows.size(0) == 0 or (rows.size(1) > 1 and rows.stride(1) != 1):
        raise ValueError(
            f"codec: {name} has the shape {tuple(rows.shape)} and the strides {rows.stride()}; "
            "give a row of contiguous bytes for each rank"
        )
    return _without_history(rows)


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _check(tensor: Any, name: str, dtypes: Collection[torch.dtype], like: torch.Tensor | None) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"codec: {name} is of {type(tensor).__name__}; give a tensor")
    if tensor.dtype not in dtypes:
        raise ValueError(f"codec: {name} is of {tensor.dtype}; give {', '.join(map(str, dtypes))}")
    if like is not None and tensor.device != like.device:
        raise ValueError(f"codec: {name} is on {tensor.device}, and another tensor on {like.device}; move one of them")


def check_size(tensor: torch.Tensor, name: str, wanted: int, why: str) -> None:
    """Raises ValueError unless the last dimension has so many elements."""
    if tensor.size(-1) != wanted:
        raise ValueError(f"codec: {name} has {tensor.size(-1)} elements; {why} needs {wanted}")
