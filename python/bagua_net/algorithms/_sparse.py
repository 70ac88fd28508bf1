# SPDX-License-Identifier: MIT
"""Averages of the largest elements only: SparseLoCo's codec.

A vector is cut in blocks. Of each block a rank sends the ``density`` part of the elements whose absolute values are
largest: their places, and codes of their values. All ranks get the codes of all, and add what they decode in rank
order, so they have the same bits. What a rank did not send, or lost in a code, stays in its residual.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._codec import Codec
from ._names import all_gather_single

#: Elements of a block, whose places fit in two bytes.
MOST_BLOCK = 32767
_PLACE_BYTES = 2

#: A code of 2 bits: the sign, and which of the two levels of its block.
_SIGN, _HIGH = 1, 2
_CODES_IN_BYTE = 4
_LEVELS_BYTES = 8  # of a block: two float32

#: Elements that share a range, with codes of 8 or 4 bits.
_CODEC_BLOCK = 128


class Sparse:
    """How a vector of float32 in the memory of the host is encoded.

    Args:
        density: the part of a block that is sent; one element at least.
        bits: of a value's code: 2, 4 or 8.
        block: elements of a block, up to ``MOST_BLOCK``.
    """

    def __init__(self, density: float, bits: int, block: int) -> None:
        self._block = block
        self.kept = max(1, round(density * block))  # elements of a block
        self._codec = None if bits == 2 else Codec(bits, _CODEC_BLOCK)

    def nbytes(self, elements: int) -> int:
        """Bytes that encode so many elements."""
        blocks = self._blocks(elements)
        return _PLACE_BYTES * blocks * self.kept + self._value_bytes(blocks)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """x (elements): ``nbytes(elements)`` bytes, places before values."""
        rows = x.new_zeros(self._blocks(x.numel()), self._block)
        rows.view(-1)[: x.numel()] = x
        places = rows.abs().topk(self.kept, dim=1).indices.sort(dim=1).values
        values = rows.gather(1, places)
        coded = _to_two_bits(values) if self._codec is None else self._codec.encode(values.view(-1))
        return torch.cat([places.to(torch.int16).view(torch.uint8).view(-1), coded])

    def decode_add(self, code: torch.Tensor, out: torch.Tensor) -> None:
        """Adds to out (elements) what :meth:`encode` kept of as many. The same bits for the same bytes."""
        blocks = self._blocks(out.numel())
        places = code[: _PLACE_BYTES * blocks * self.kept].clone().view(torch.int16).long().view(blocks, self.kept)
        coded = code[_PLACE_BYTES * blocks * self.kept :]
        if self._codec is None:
            values = _from_two_bits(coded, blocks, self.kept)
        else:
            values = self._codec.decode(coded.clone(), out.new_empty(blocks * self.kept)).view(blocks, self.kept)
        rows = out.new_zeros(blocks, self._block).scatter_(1, places, values)
        out.add_(rows.view(-1)[: out.numel()])

    def _blocks(self, elements: int) -> int:
        return -(-elements // self._block)

    def _value_bytes(self, blocks: int) -> int:
        values = blocks * self.kept
        if self._codec is not None:
            return self._codec.nbytes(values)
        return _LEVELS_BYTES * blocks + -(-values // _CODES_IN_BYTE)


class SparseAverage:
    """Averages over the ranks of a group, with this codec."""

    def __init__(self, group: dist.ProcessGroup, sparse: Sparse) -> None:
        self._group = group
        self._sparse = sparse

    def average(self, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        """x (elements): in place, the mean of what the ranks send. residual: as many float32, updated. The result is
        the bytes that this rank sends, which go to every other one."""
        size = int(self._group.size())
        given = x if residual is None else x + residual
        code = self._sparse.encode(given)
        if residual is not None:
            kept = torch.zeros_like(x)
            self._sparse.decode_add(code, kept)
            residual.copy_(given.sub_(kept))
        codes = code.new_empty(size * code.numel())
        all_gather_single(codes, code, group=self._group)
        x.zero_()
        for row in codes.view(size, -1):
            self._sparse.decode_add(row, x)
        x.div_(size)
        return (size - 1) * int(code.numel())


def _to_two_bits(values: torch.Tensor) -> torch.Tensor:
    """values (blocks × kept): the levels of all blocks, and then four codes in a byte. The levels of a block are the
    means of its absolute values up to their mean, and of those above it."""
    sizes = values.abs()
    high = sizes > sizes.mean(1, keepdim=True)
    levels = torch.stack([_mean_of(sizes, ~high), _mean_of(sizes, high)], dim=1)
    codes = (values < 0).to(torch.uint8) * _SIGN + high.to(torch.uint8) * _HIGH
    quads = codes.new_zeros(-(-codes.numel() // _CODES_IN_BYTE), _CODES_IN_BYTE)
    quads.view(-1)[: codes.numel()] = codes.view(-1)
    packed = quads[:, 0] | quads[:, 1] << 2 | quads[:, 2] << 4 | quads[:, 3] << 6
    return torch.cat([levels.view(torch.uint8).view(-1), packed])


def _mean_of(sizes: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Of each row's chosen elements; 0 where there are none. A row with an element that is not finite has no mean."""
    total = torch.where(chosen, sizes, 0.0).sum(1) / chosen.sum(1).clamp(min=1)
    return torch.where(sizes.sum(1).isfinite(), total, torch.nan)


def _from_two_bits(coded: torch.Tensor, blocks: int, kept: int) -> torch.Tensor:
    """(blocks × kept)"""
    levels = coded[: _LEVELS_BYTES * blocks].clone().view(torch.float32).view(blocks, 2)
    packed = coded[_LEVELS_BYTES * blocks :]
    codes = torch.stack([packed & 3, packed >> 2 & 3, packed >> 4 & 3, packed >> 6], dim=1)
    codes = codes.view(-1)[: blocks * kept].view(blocks, kept)
    sizes = torch.where((codes & _HIGH).bool(), levels[:, 1:], levels[:, :1])
    return torch.where((codes & _SIGN).bool(), -sizes, sizes)
