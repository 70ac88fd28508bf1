# SPDX-License-Identifier: MIT
"""The codec in the library, for tensors on the CPU. Its calls release the GIL.

Where several operations follow each other, they work on a few blocks at a time: what is between them stays in the
processor's cache. Tensors of a whole bucket would be new pages at each step, which cost several times the codec.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..._native import library
from . import eager
from .format import Format

#: BNET_CODEC_… of bagua_net_host.h, by bits.
_CODES = {8: 1, 4: 2}
_FLOATS = library.ffi.typeof("float *")
_BYTES = library.ffi.typeof("void *")
#: Elements at a time, about: half a MiB of float32.
_PIECE = 1 << 17


class _Chunk(NamedTuple):
    """Some blocks of a tensor, and where its encoded bytes have their heads and codes."""

    elements: slice
    heads: slice
    codes: slice

    def taken(self, encoded: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        """The blocks as an encoded tensor of their own, at the start of the scratch."""
        heads = self.heads.stop - self.heads.start
        out = scratch[: heads + self.codes.stop - self.codes.start]
        out[:heads] = encoded[self.heads]
        out[heads:] = encoded[self.codes]
        return out

    def put(self, own: torch.Tensor, encoded: torch.Tensor) -> None:
        """The opposite of :meth:`taken`."""
        heads = self.heads.stop - self.heads.start
        encoded[self.heads] = own[:heads]
        encoded[self.codes] = own[heads:]


def _chunks(form: Format, count: int) -> Iterator[_Chunk]:
    step, codes = _elements(form), form.head_bytes(count)
    for start in range(0, count, step):
        end = min(start + step, count)
        heads = slice(form.head_bytes(start), form.head_bytes(end))
        yield _Chunk(slice(start, end), heads, slice(codes + start * form.bits // 8, codes + -(-end * form.bits // 8)))


def _elements(form: Format) -> int:
    """Of a chunk that is not the last: whole blocks."""
    return max(1, _PIECE // form.block) * form.block


class _Scratch:
    """For a chunk."""

    def __init__(self, form: Format, count: int) -> None:
        most = min(_elements(form), count)
        self.code = torch.empty(form.nbytes(most), dtype=torch.uint8, device="cpu")
        self.decoded = torch.empty(most, dtype=torch.float32, device="cpu")


def encode(form: Format, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """As :func:`eager.encode`."""
    if residual is None:
        _encode(form, x.float(), out)
        return
    scratch = _Scratch(form, x.numel())
    for chunk in _chunks(form, x.numel()):
        _encode_chunk(form, chunk, x[chunk.elements], residual, out, scratch)


def _encode_chunk(
    form: Format, chunk: _Chunk, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor, scratch: _Scratch
) -> None:
    """x: the chunk's elements. residual, out: those of all elements."""
    kept = None if residual is None else residual[chunk.elements]
    values = eager.with_residual(x, kept)
    code = scratch.code[: form.nbytes(x.numel())]
    _encode(form, values, code)
    chunk.put(code, out)
    if kept is not None:
        decoded = scratch.decoded[: x.numel()]
        _decode(form, code, decoded, adds=False)
        _keep_lost(kept, values, decoded)


def _keep_lost(residual: torch.Tensor, values: torch.Tensor, decoded: torch.Tensor) -> None:
    """As :func:`eager.keep_lost`, in fewer passes where all is finite, and so is the sum."""
    lost = values - decoded
    if math.isfinite(lost.sum()):
        residual.copy_(lost)
    else:
        eager.keep_lost(residual, values, decoded)


def decode(form: Format, encoded: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
    """As :func:`eager.decode`."""
    if out.dtype is torch.float32:
        _decode(form, encoded, out, adds=adds)
        return
    values = out.float()
    _decode(form, encoded, values, adds=adds)
    out.copy_(values)


def decode_sum_encode(
    form: Format, rows: torch.Tensor, count: int, divisor: float, residual: torch.Tensor | None, out: torch.Tensor
) -> None:
    """As :func:`eager.decode_sum_encode`."""
    scratch, total = _Scratch(form, count), torch.empty(min(_elements(form), count), dtype=torch.float32, device="cpu")
    for chunk in _chunks(form, count):
        values = total[: chunk.elements.stop - chunk.elements.start]
        for rank, row in enumerate(rows):
            _decode(form, chunk.taken(row, scratch.code), values, adds=rank > 0)
        eager.divide(values, divisor)
        _encode_chunk(form, chunk, values, residual, out, scratch)


def _encode(form: Format, values: torch.Tensor, out: torch.Tensor) -> None:
    library.load_host().bnet_codec_encode(
        _CODES[form.bits], form.block, _at(_FLOATS, values), values.numel(), _at(_BYTES, out)
    )


def _decode(form: Format, encoded: torch.Tensor, values: torch.Tensor, *, adds: bool) -> None:
    lib = library.load_host()
    function = lib.bnet_codec_decode_add if adds else lib.bnet_codec_decode
    rc = function(
        _CODES[form.bits],
        form.block,
        _at(_BYTES, encoded),
        encoded.numel(),
        _at(_FLOATS, values),
        values.numel(),
    )
    assert rc == 0, f"the library refuses {encoded.numel()} bytes of {values.numel()} elements: {rc}"


def _at(kind: Any, tensor: torch.Tensor) -> Any:
    return library.ffi.cast(kind, tensor.data_ptr())
