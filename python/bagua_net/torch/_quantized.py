# SPDX-License-Identifier: MIT
"""Compressed reductions of float32 tensors: what crosses the network is encoded in 8 or 4 bits for each element."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .._native import library
from . import _tensors as tensors
from ._group import ProcessGroupBaguaNet
from ._work import Work

#: BNET_CODEC_… of bagua_net_host.h.
_CODECS = {8: 1, 4: 2}


@dataclass(frozen=True)
class Options:
    """As torch's own options are: with their names."""

    reduceOp: Any  # noqa: N815
    asyncOp: bool  # noqa: N815
    bits: int
    block: int

    def fields(self) -> dict[str, Any]:
        """Of ``bnet_op_t``."""
        return {"codec": _CODECS[self.bits], "block": self.block}


def all_reduce_quantized(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.AVG,
    *,
    bits: int = 8,
    block: int = 512,
    residual: torch.Tensor | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """``torch.distributed.all_reduce`` of float32, approximately: codes cross the network instead of the elements.

    Each block of elements has a range of its own; a *step* is this range by 255 (8 bits) or by 15. Every rank's
    elements are encoded, and then the result: all ranks get the same bits. An average differs from the exact one by at
    most half a step of the ranks' elements, in the mean of the ranks, and half a step of the result; float32 rounds as
    well. A block that is not finite on any rank is NaN on all.

    Ranks of one host that share memory reduce exactly; only what travels between hosts is encoded. So a group within
    one host is exact, and does not use the residual.

    Args:
        tensor: float32, contiguous, on the CPU, of any shape, the same on all ranks. It is overwritten.
        op: ``ReduceOp.AVG`` or ``SUM``.
        bits: for each element, 8 or 4; besides, 64 for each block.
        block: elements, a multiple of 32 up to 4096; from the first element of the flattened tensor on.
        residual: float32, contiguous, on the CPU, of the tensor's shape; zeros before the first call, kept by this rank
            from call to call. It is added to the tensor; afterwards it holds what the codes have lost. Over any number
            of calls, the results and what the ranks' residuals reduce to are together what exact reductions would have
            given.
        group: one of this backend; the default group by default.
        async_op: return before it is over.

    Returns:
        The work if ``async_op``, or else None; None as well on a rank that is not in the group, with a warning.

    Raises:
        TypeError: no tensor, or a group of another backend.
        ValueError: a tensor of another type, layout, device or shape, another reduction, ``bits`` or ``block``.
        DistBackendError: as for every operation of the group, here or in the work's ``wait``.
    """
    member = _member(group, "all_reduce_quantized")
    if member is None:
        return None
    options = _options("all_reduce_quantized", op, async_op, bits, block)
    _check(tensor, "all_reduce_quantized")
    _check_residual(residual, tensor, "all_reduce_quantized")
    return _result(member.allreduce_quantized(tensor, residual, options), async_op)


def reduce_scatter_quantized(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.AVG,
    *,
    bits: int = 8,
    block: int = 512,
    residual: torch.Tensor | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """``torch.distributed.reduce_scatter_tensor`` of float32, approximately: see :func:`all_reduce_quantized`.

    The ranks' elements are encoded, the result is not: its error is the first half of the bound there.

    Args:
        output: float32, contiguous, on the CPU: this rank's part of the result.
        input: as many times the elements of ``output`` as the group has ranks, in rank order. It may contain ``output``
            as this rank's part.
        residual: as there, of the shape of ``input``.

    The other arguments, the result and the exceptions are those of :func:`all_reduce_quantized`.
    """
    member = _member(group, "reduce_scatter_quantized")
    if member is None:
        return None
    options = _options("reduce_scatter_quantized", op, async_op, bits, block)
    _check(output, "reduce_scatter_quantized")
    _check(input, "reduce_scatter_quantized")
    _check_residual(residual, input, "reduce_scatter_quantized")
    return _result(member.reduce_scatter_quantized(output, input, residual, options), async_op)


# ---- arguments ----


def _member(group: Any, what: str) -> ProcessGroupBaguaNet | None:
    """The group. None: this rank is not in it."""
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        warnings.warn(f"{what}: this rank is not in the group, and takes no part", stacklevel=3)
        return None
    if group is None:
        raise ValueError(f"{what}: there is no default group; call init_process_group first")
    if not isinstance(group, ProcessGroupBaguaNet):
        name = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else type(group).__name__
        raise TypeError(f"{what}: a group of the bagua_net backend is needed, not of {name}; make one with new_group")
    return group


def _options(what: str, op: Any, async_op: bool, bits: int, block: int) -> Options:
    if getattr(op, "op", op) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"{what}: {op} cannot be compressed; use ReduceOp.AVG or SUM")
    if bits not in _CODECS:
        raise ValueError(f"{what}: bits={bits}; take 8 or 4")
    if not isinstance(block, int) or block < 0 or library.load_host().bnet_codec_bytes(_CODECS[bits], block, 1) == 0:
        raise ValueError(f"{what}: block={block}; take a multiple of 32 up to 4096")
    return Options(op, async_op, bits, block)


def _check(tensor: Any, what: str, name: str = "the tensor") -> None:
    tensors.check(tensor, what)
    if tensor.dtype != torch.float32:
        raise ValueError(f"{what}: {name} must be of torch.float32, not {tensor.dtype}; convert it")
    if not tensors.is_plain(tensor):
        raise ValueError(f"{what}: {name} must be contiguous; call contiguous() on it")


def _check_residual(residual: Any, tensor: torch.Tensor, what: str) -> None:
    if residual is None:
        return
    _check(residual, what, "the residual")
    if residual.shape != tensor.shape:
        raise ValueError(
            f"{what}: the residual must have the shape of what is reduced, {list(tensor.shape)}, not "
            f"{list(residual.shape)}"
        )
    if residual.numel() > 0 and residual.data_ptr() == tensor.data_ptr():
        raise ValueError(f"{what}: the residual must have memory of its own")


def _result(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None
