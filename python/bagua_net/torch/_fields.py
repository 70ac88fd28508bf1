# SPDX-License-Identifier: MIT
"""The fields of ``bnet_op_t``, by which the library is told what to do with which memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._native import library
from . import _tensors as tensors


def copy(kind: str, plain: torch.Tensor, *, root: int = 0) -> dict[str, Any]:
    """The bytes of a contiguous tensor, both sent and received."""
    at = tensors.address(plain)
    fields = {"kind": kind, "dtype": tensors.BYTES, "count": tensors.size_of(plain), "root": root}
    return fields | {"send": at, "recv": at}


def reduction(kind: str, plain: torch.Tensor, op: Any) -> dict[str, Any]:
    """The elements of a contiguous tensor, both sent and received."""
    dtype, number = tensors.reduction(plain.dtype, op)
    at = tensors.address(plain)
    count = 2 * plain.numel() if plain.is_complex() else plain.numel()
    return {"kind": kind, "dtype": dtype, "op": number, "count": count, "send": at, "recv": at}


def kept(residual: torch.Tensor | None) -> dict[str, Any]:
    return {} if residual is None else {"residual": library.ffi.cast("float *", residual.data_ptr())}


def exchange(send_counts: Sequence[int], recv_counts: Sequence[int]) -> dict[str, Any]:
    """Blocks of so many bytes."""
    counts = {
        "send_counts": library.ffi.new("size_t[]", list(send_counts)),
        "recv_counts": library.ffi.new("size_t[]", list(recv_counts)),
    }
    return {"kind": "BNET_COLL_ALL_TO_ALLV", "dtype": tensors.BYTES} | counts
