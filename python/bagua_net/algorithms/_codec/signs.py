# SPDX-License-Identifier: MIT
"""Tensors of float32 in one bit for each element and one float32 for each block, and back, in operations of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .pieces import AT_ONCE

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
        block: elements that share a scale, a multiple of 32.
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
        for part, signs, scales in self._parts(code, x.numel(), x.device):
            self._encode(x[part], residual[part], signs, scales)

    def decode(self, code: torch.Tensor, out: torch.Tensor, *, adds: bool = False) -> None:
        """Fills ``out`` with the first elements of the code, or adds these to it."""
        units = _units(out.device)
        for part, signs, scales in self._parts(code, out.numel(), out.device):
            blocks = units.index_select(0, signs.int()).view(-1, self.block).mul_(scales[:, None])
            values = blocks.view(-1)[: out[part].numel()]
            if adds:
                out[part].add_(values)
            else:
                out[part].copy_(values)

    def _parts(
        self, code: torch.Tensor, elements: int, device: torch.device
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """(elements, their signs, the scales of their blocks), in pieces of whole blocks except for the last."""
        blocks = -(-elements // self.block)
        width = self.block // _BITS
        all_signs = code.numel() // (width + _SCALE_BYTES) * width
        signs, scales = code[:all_signs], code[all_signs:].view(torch.float32)
        most = max(1, AT_ONCE // self.block) if device.type == "cpu" else max(1, blocks)
        for first in range(0, blocks, most):
            after = min(first + most, blocks)
            part = slice(first * self.block, min(after * self.block, elements))
            yield part, signs[first * width : after * width], scales[first:after]

    def _encode(self, x: torch.Tensor, residual: torch.Tensor, signs: torch.Tensor, scales: torch.Tensor) -> None:
        """One piece. Missing elements of its last block are zeros."""
        values = x.new_zeros(scales.numel() * self.block)
        torch.add(x, residual, out=values[: x.numel()])
        blocks = values.view(-1, self.block)
        # Of all ways to count what is not zero this is by far the fastest.
        scale = blocks.abs().sum(1) / blocks.sign().abs_().sum(1).clamp_(min=1)
        finite = scale.isfinite()
        scales.copy_(torch.where(finite, scale, torch.nan))
        signs.copy_(values.signbit().view(torch.int64).mul(_GATHER) >> 56)
        blocks.sub_(torch.copysign(scale[:, None], blocks))
        if blocks.device.type != "cpu" or not finite.all():  # a look at a device's memory would wait for it
            blocks.masked_fill_(~finite[:, None], 0)
        residual.copy_(values[: residual.numel()])


def _units(device: torch.device) -> torch.Tensor:
    """Shape (256, 8): 1 for a bit that is 0, -1 for one that is 1, the lowest bit of a byte first."""
    places = torch.arange(_BITS, device=device)
    return 1 - 2 * ((torch.arange(256, device=device)[:, None] >> places) & 1).float()
