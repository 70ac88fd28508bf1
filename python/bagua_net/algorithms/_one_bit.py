# SPDX-License-Identifier: MIT
"""Averages of signs: one bit for each element, and one float32 for each block.

As with ``_compressed.py`` each rank sends a share to each owner, and an owner encodes the mean once. What a rank's
encoding loses goes into its residual, and what an owner's loses into another one: with one bit the loss is as large as
the value, and times the number of ranks it would drown the owner's own contribution.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._names import all_gather_single

_BITS = 8  # in a byte


class OneBit:
    """Averages over a group, of float32. A share's code is its signs, then its blocks' scales.

    A block's scale is the mean magnitude of its elements that are not exactly zero, so that it is right where few are
    not. There is no third code for such a zero: it is sent as the scale, and taken back with the next one. A block with
    an element that is not finite is NaN on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, block: int) -> None:
        self._group = group
        self._block = block
        self._rank, self._size = int(group.rank()), int(group.size())

    def nbytes(self, elements: int) -> int:
        """Of a code of whole blocks."""
        return elements // _BITS + elements // self._block * 4

    def average(self, x: torch.Tensor, residual: torch.Tensor, owned: torch.Tensor) -> int:
        """x (elements): in place, the mean over the ranks. residual: as many, updated. owned: as many, of which those
        of this rank's share are updated. The result is the bytes that this rank sends."""
        share = -(-x.numel() // (self._size * self._block)) * self._block
        own = slice(self._rank * share, min((self._rank + 1) * share, x.numel()))
        self._give_up(residual, owned, own)
        codes = self._exchange(x, residual, share)
        mean = self._decoded(codes, share).view(self._size, share)
        total = mean[0].clone()
        for each in mean[1:]:  # in the order of the ranks
            total += each
        answer = self._answer(total.div_(self._size), owned[own])
        gathered = torch.empty_like(codes)
        all_gather_single(gathered.view(-1), answer, group=self._group)
        x.copy_(self._decoded(gathered, share)[: x.numel()])
        return 2 * (self._size - 1) * self.nbytes(share)

    def _give_up(self, residual: torch.Tensor, owned: torch.Tensor, own: slice) -> None:
        """What an owner has lost, of elements that another rank owns now: DDP has cut its buckets anew. The next mean
        divides by the number of ranks."""
        for others in (slice(0, own.start), slice(max(own.start, own.stop), None)):
            residual[others].add_(owned[others], alpha=self._size)
            owned[others].zero_()

    def _exchange(self, x: torch.Tensor, residual: torch.Tensor, share: int) -> torch.Tensor:
        """(ranks, bytes): the codes of this rank's share that all ranks sent."""
        whole = x.new_zeros(self._size * share)
        torch.add(x, residual, out=whole[: x.numel()])
        sent, loss = self._encoded(whole, self._size)
        residual.copy_(loss[: x.numel()])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=self._group)
        return received

    def _answer(self, mean: torch.Tensor, owned: torch.Tensor) -> torch.Tensor:
        """The code of the mean of this rank's share. owned: what it has lost so far, without the share's padding."""
        mean[: owned.numel()] += owned
        mean[owned.numel() :] = 0
        code, loss = self._encoded(mean, 1)
        owned.copy_(loss[: owned.numel()])
        return code.view(-1)

    def _encoded(self, x: torch.Tensor, shares: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (shares, bytes), and what they lose (elements). x: whole blocks."""
        blocks = x.view(-1, self._block)
        scales = blocks.abs().sum(1) / blocks.count_nonzero(1).clamp(min=1)
        scales = torch.where(scales.isfinite(), scales, torch.nan)
        signs = (blocks >= 0).view(shares, -1, _BITS).to(torch.uint8)
        packed = (signs << _places(x.device)).sum(2, dtype=torch.uint8)
        code = torch.cat([packed, scales.view(shares, -1).view(torch.uint8)], 1)
        loss = blocks - torch.where(blocks >= 0, scales[:, None], -scales[:, None])
        return code, torch.where(scales.isfinite()[:, None], loss, 0).view(-1)

    def _decoded(self, codes: torch.Tensor, share: int) -> torch.Tensor:
        """The elements of all codes (shares, bytes), one share after the other."""
        packed, scales = codes.split([share // _BITS, codes.size(1) - share // _BITS], 1)
        signs = (packed.unsqueeze(2) >> _places(codes.device)) & 1
        values = scales.contiguous().view(torch.float32).view(-1, 1)
        return torch.where(signs.reshape(-1, self._block) == 1, values, -values).view(-1)


def _places(device: torch.device) -> torch.Tensor:
    return torch.arange(_BITS, dtype=torch.uint8, device=device)
