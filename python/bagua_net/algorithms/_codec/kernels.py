# SPDX-License-Identifier: MIT
"""The codec on CUDA devices: starts the kernels of programs.py. Importing this imports Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton

from . import programs
from .format import Format

#: Elements of a program, unless a block has more.
_TILE = 2048
#: Bytes of a float, which a kernel reads at multiples of them.
_FLOAT = 4


def encode(form: Format, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """As :func:`eager.encode`."""
    heads, codes = _parts(form, out, x.numel())
    _start(programs.encode, form, x.numel(), x, residual, heads, codes)
    _settle(heads, out)


def decode(form: Format, encoded: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
    """As :func:`eager.decode`."""
    heads, codes = _parts(form, encoded, out.numel())
    _start(programs.decode, form, out.numel(), heads, codes, out, ADDS=adds)


def decode_sum_encode(
    form: Format, rows: torch.Tensor, count: int, divisor: float, residual: torch.Tensor | None, out: torch.Tensor
) -> None:
    """As :func:`eager.decode_sum_encode`."""
    row_heads, row_codes = _parts(form, rows, count)
    strides = row_heads.stride(0), row_codes.stride(0)
    heads, codes = _parts(form, out, count)
    arguments = row_heads, row_codes, *strides, divisor, residual, heads, codes
    _start(programs.decode_sum_encode, form, count, *arguments, ROWS=rows.size(0))
    _settle(heads, out)


def _parts(form: Format, encoded: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads, as float32, and codes of encoded elements or of rows of them. The heads are a copy where they are not
    aligned, as they may be in a slice."""
    head_bytes = form.head_bytes(count)
    heads, codes = encoded[..., :head_bytes], encoded[..., head_bytes:]
    if any(at % _FLOAT for at in (encoded.data_ptr(), encoded.storage_offset(), *encoded.stride()[:-1])):
        heads = heads.clone(memory_format=torch.contiguous_format)
    return heads.view(torch.float32), codes


def _settle(heads: torch.Tensor, out: torch.Tensor) -> None:
    """Puts heads that a kernel wrote where they belong, if they are a copy."""
    if heads.data_ptr() != out.data_ptr():
        out[: heads.numel() * _FLOAT] = heads.view(torch.uint8)


def constants(form: Format) -> dict[str, Any]:
    """What a kernel is compiled for, besides the types of its arguments."""
    width = triton.next_power_of_2(form.block)
    return {
        "BITS": form.bits,
        "BLOCK": form.block,
        "WIDTH": width,
        "BLOCKS": max(_TILE // width, 1),
    }


def _start(kernel: Any, form: Format, count: int, *arguments: Any, **more: Any) -> None:
    """On the current stream of the tensors' device."""
    if count == 0:
        return
    known = constants(form)
    programs_needed = triton.cdiv(form.blocks(count), known["BLOCKS"])
    device = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
    with torch.cuda.device_of(device):
        kernel[(programs_needed,)](*arguments, count, **known, **more, **programs.OPTIONS)
