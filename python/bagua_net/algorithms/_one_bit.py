# SPDX-License-Identifier: MIT
"""Averages of signs: one bit for each element, and one float32 for each block.

As with ``_compressed.py`` each rank sends a share to each owner, and an owner encodes the mean once. What a rank's
encoding loses goes into its residual, and what an owner's loses into another one: with one bit the loss is as large as
the value, and times the number of ranks it would drown the owner's own contribution.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._codec.signs import Signs
from ._names import all_gather_single
from ._scratch import ScratchBuffers


class OneBit:
    """Averages over a group, of float32, on one thread or stream. A block with an element that is not finite is NaN on
    all ranks."""

    def __init__(self, group: dist.ProcessGroup, block: int) -> None:
        self._group = group
        self._signs = Signs(block)
        self._rank, self._size = int(group.rank()), int(group.size())
        self._scratch = ScratchBuffers()

    def average(self, x: torch.Tensor, residual: torch.Tensor, owned: torch.Tensor) -> int:
        """x (elements): in place, the mean over the ranks. residual: as many, updated. owned: as many, of which those
        of this rank's share are updated. The result is the bytes that this rank sends."""
        block = self._signs.block
        share = -(-x.numel() // (self._size * block)) * block
        own = slice(min(self._rank * share, x.numel()), min((self._rank + 1) * share, x.numel()))
        self._give_up(residual, owned, own)
        codes = self._exchange(x, residual, share)
        answer = self._scratch.get("answer", codes.size(1), torch.uint8, x.device).zero_()
        self._answer(codes, owned[own], answer)
        all_gather_single(codes.view(-1), answer, group=self._group)
        for code, each in zip(codes, x.split(share), strict=False):
            self._signs.decode(code, each)
        return 2 * (self._size - 1) * self._signs.nbytes(share)

    def _give_up(self, residual: torch.Tensor, owned: torch.Tensor, own: slice) -> None:
        """What an owner has lost, of elements that another rank owns now: DDP has cut its buckets anew. The next mean
        divides by the number of ranks."""
        for others in (slice(0, own.start), slice(own.stop, None)):
            residual[others].add_(owned[others], alpha=self._size)
            owned[others].zero_()

    def _exchange(self, x: torch.Tensor, residual: torch.Tensor, share: int) -> torch.Tensor:
        """(ranks, bytes): the codes of this rank's share that all ranks sent. Until the next call."""
        sent, received = (self._codes(name, share, x.device) for name in ("sent", "received"))
        sent.zero_()  # the last ranks may own nothing
        for code, values, kept in zip(sent, x.split(share), residual.split(share), strict=False):
            self._signs.encode_with_residual(values, kept, code)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=self._group)
        return received

    def _codes(self, name: str, share: int, device: torch.device) -> torch.Tensor:
        row = self._signs.nbytes(share)
        return self._scratch.get(name, self._size * row, torch.uint8, device).view(self._size, row)

    def _answer(self, codes: torch.Tensor, owned: torch.Tensor, answer: torch.Tensor) -> None:
        """The code of the mean of this rank's share. owned: what it has lost so far."""
        mean = self._scratch.get("mean", owned.numel(), torch.float32, owned.device)
        for rank, code in enumerate(codes):
            self._signs.decode(code, mean, adds=rank > 0)
        self._signs.encode_with_residual(mean.div_(self._size), owned, answer)
