# SPDX-License-Identifier: MIT
"""Tensors of float32 in one bit for each element and one float32 for each block, and back: on the CPU by the library,
elsewhere in operations of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..._native import library

_BITS = 8  # in a byte
_SCALE_BYTES = 4
#: Times eight bytes of 0 or 1, as a little-endian integer: byte i goes to bit 56 + i, and no two meet in a bit.
_GATHER = sum(1 << (56 - 7 * i) for i in range(_BITS))


@dataclass(frozen=True)
class Signs:
    """A code has the sign bits of all blocks' elements, then the blocks' scales.

    A block's scale is the mean magnitude of its elements that are not exactly zero, so that it is right where few are
    not. There is no third code for such a zero: it is sent as the scale, and taken back with the next one. A block with
    an element that is not finite decodes to NaN.

    Attributes:
        block: elements that share a scale, a multiple of 32 up to 4096.
    """

    block: int

    def nbytes(self, elements: int) -> int:
        """Of a code of whole blocks."""
        return elements // _BITS + elements // self.block * _SCALE_BYTES

    def encode_with_residual(self, x: torch.Tensor, residual: torch.Tensor, code: torch.Tensor) -> None:
        """Encodes x + residual, of one size. Then the residual is what decoding does not give back, and 0 in a block
        that is not finite.

        The code may be of more elements than x has. Only that of the blocks of x is written.
        """
        signs, scales = self._parts(code, x.numel())
        if x.is_cpu:
            rc = library.load_host().bnet_signs_encode(
                self.block, _floats(x), _floats(residual), x.numel(), _bytes(signs), _floats(scales)
            )
            assert rc == 0, f"the library refuses blocks of {self.block} elements"
        else:
            self.encode_in_torch(x, residual, signs, scales)

    def decode(self, code: torch.Tensor, out: torch.Tensor, *, adds: bool = False) -> None:
        """Fills ``out`` with the first elements of the code, or adds these to it."""
        signs, scales = self._parts(code, out.numel())
        if out.is_cpu:
            lib = library.load_host()
            call = lib.bnet_signs_decode_add if adds else lib.bnet_signs_decode
            rc = call(self.block, _bytes(signs), _floats(scales), _floats(out), out.numel())
            assert rc == 0, f"the library refuses blocks of {self.block} elements"
        else:
            self.decode_in_torch(signs, scales, out, adds=adds)

    def _parts(self, code: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The signs and the scales of the blocks of so many elements."""
        blocks = -(-elements // self.block)
        width = self.block // _BITS
        all_signs = code.numel() // (width + _SCALE_BYTES) * width
        return code[: blocks * width], code[all_signs:].view(torch.float32)[:blocks]

    # ---- the same on any device ----

    def encode_in_torch(
        self, x: torch.Tensor, residual: torch.Tensor, signs: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Missing elements of the last block are zeros."""
        values = x.new_zeros(scales.numel() * self.block)
        torch.add(x, residual, out=values[: x.numel()])
        blocks = values.view(-1, self.block)
        scale = blocks.abs().sum(1) / blocks.count_nonzero(1).clamp_(min=1)
        finite = scale.isfinite()
        scales.copy_(torch.where(finite, scale, torch.nan))
        signs.copy_(values.signbit().view(torch.int64).mul(_GATHER) >> 56)
        blocks.sub_(torch.copysign(scale[:, None], blocks)).masked_fill_(~finite[:, None], 0)
        residual.copy_(values[: residual.numel()])

    def decode_in_torch(self, signs: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
        blocks = _units(out.device).index_select(0, signs.int()).view(-1, self.block).mul_(scales[:, None])
        values = blocks.view(-1)[: out.numel()]
        if adds:
            out.add_(values)
        else:
            out.copy_(values)


def _units(device: torch.device) -> torch.Tensor:
    """Shape (256, 8): 1 for a bit that is 0, -1 for one that is 1, the lowest bit of a byte first."""
    places = torch.arange(_BITS, device=device)
    return 1 - 2 * ((torch.arange(256, device=device)[:, None] >> places) & 1).float()


def _floats(tensor: torch.Tensor) -> Any:
    assert tensor.is_contiguous()
    return library.ffi.cast("float *", tensor.data_ptr())


def _bytes(tensor: torch.Tensor) -> Any:
    return library.ffi.cast("uint8_t *", tensor.data_ptr())
