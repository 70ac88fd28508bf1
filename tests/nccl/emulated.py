# SPDX-License-Identifier: MIT
"""NCCL's functions on emulated GPUs, as the package calls them for its own checks: ranks of the jobs here use them."""

from __future__ import annotations

from bagua_net._nccl.emulated import (
    IN_PROGRESS,
    NO_COLOR,
    Comm,
    DataType,
    Nccl,
    NcclFailed,
    RedOp,
    Stream,
    ffi,
    open,
)

__all__ = ["IN_PROGRESS", "NO_COLOR", "Comm", "DataType", "Nccl", "NcclFailed", "RedOp", "Stream", "ffi", "open"]
