# SPDX-License-Identifier: MIT
"""Averages and reduce-scatters of codes instead of floats, over any group.

Each rank cuts its elements into a share for each rank and sends the encoded shares to their owners. An owner decodes
and adds the shares in rank order, its own from its code as well, and encodes the mean once. All ranks get that code
verbatim and decode it: two quantizations whatever the number of ranks, and the same bits everywhere. The bound for an
element is half of the mean of the ranks' steps, plus half of the mean's step.

With a residual, what a rank's encoding loses is added to its next contribution. The owner's loss goes into its own
residual, times the number of ranks, since the next mean divides by it.

Where several hosts have equally many ranks, the ranks of a host first add exactly, in float32, each a part; codes of
that part travel between the ranks of equal numbers; and the ranks of a host pass on what they have. So a host sends
what one rank would.

Groups of ``bagua_net`` do all this inside the library (docs/dev/collectives.md); others, here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from ._codec import Codec
from ._groups import Groups
from ._names import all_gather_single, reduce_scatter_single
from ._nodes import Nodes, by_host
from ._scratch import ScratchBuffers


class Compression(NamedTuple):
    """How gradients are compressed."""

    codec: Codec
    error_feedback: bool
    exact_one_dimensional: bool


class Compressed(Protocol):
    """Collectives of codes over one group, on contiguous float32 tensors. The results are bytes that this rank sends,
    by the algorithm: by hosts, those to other hosts; ranks of ``bagua_net`` that share memory send less."""

    def average(self, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        """x (elements): in place, the mean over the ranks. residual: as many float32, updated."""

    def reduce_scatter_average(self, output: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        """output (elements) is this rank's part of the mean of x (ranks × elements)."""


def hosts_of(group: dist.ProcessGroup, device: torch.device, groups: Groups) -> Nodes | None:
    """For :func:`compressed`; None where codes go between all ranks, and where the library knows the hosts. All ranks
    of the group call this."""
    return None if _is_in_library(group, device) else by_host(group, groups, device)


def compressed(group: dist.ProcessGroup, codec: Codec, device: torch.device, hosts: Nodes | None = None) -> Compressed:
    """Those of a group: by the library where it can."""
    if _is_in_library(group, device):
        return _InLibrary(group, codec)
    return over_group(group, codec) if hosts is None else _OverHosts(hosts, codec)


def _is_in_library(group: dist.ProcessGroup, device: torch.device) -> bool:
    if device.type != "cpu":
        return False
    from ..torch import ProcessGroupBaguaNet

    return isinstance(group, ProcessGroupBaguaNet)


def over_group(group: dist.ProcessGroup, codec: Codec) -> Compressed:
    """Stage by stage, over a group of any backend."""
    return _OverGroup(group, codec)


def sent_by_average(codec: Codec, elements: int, size: int) -> int:
    """Bytes that a rank sends: a share's code to each other rank, and the code of its own share to each other rank."""
    return 2 * (size - 1) * codec.nbytes(_share(elements, size, codec.block))


def _share(elements: int, size: int, block: int) -> int:
    """Elements of each share but the last ones: whole blocks."""
    return -(-elements // (size * block)) * block


class _InLibrary:
    def __init__(self, group: dist.ProcessGroup, codec: Codec) -> None:
        self._group = group
        self._codec = codec

    def _arguments(self, residual: torch.Tensor | None) -> dict[str, Any]:
        return {"bits": self._codec.bits, "block": self._codec.block, "residual": residual, "group": self._group}

    def average(self, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        from ..torch import all_reduce_quantized

        all_reduce_quantized(x, dist.ReduceOp.AVG, **self._arguments(residual))
        return sent_by_average(self._codec, x.numel(), self._group.size())

    def reduce_scatter_average(self, output: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        from ..torch import reduce_scatter_quantized

        reduce_scatter_quantized(output, x, dist.ReduceOp.AVG, **self._arguments(residual))
        return int(self._group.size() - 1) * self._codec.nbytes(output.numel())


class _OverGroup:
    """One call after the other, on one thread or stream."""

    def __init__(self, group: dist.ProcessGroup, codec: Codec) -> None:
        self._group = group
        self._codec = codec
        self._rank, self._size = int(group.rank()), int(group.size())
        self._scratch = ScratchBuffers()

    def average(self, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        share = _share(x.numel(), self._size, self._codec.block)
        shares = x.split(share) if share else ()
        residuals = residual.split(share) if residual is not None and share else (None,) * len(shares)
        codes = self._exchange(shares, residuals, self._codec.nbytes(share))
        answer = self._scratch.get("answer", codes.size(1), torch.uint8, x.device)
        if self._rank < len(shares):
            self._answer(codes, shares[self._rank], residuals[self._rank], answer)
        all_gather_single(codes.view(-1), answer, group=self._group)
        for row, each in zip(codes, shares, strict=False):
            self._codec.decode(row[: self._codec.nbytes(each.numel())], each)
        return sent_by_average(self._codec, x.numel(), self._size)

    def reduce_scatter_average(self, output: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        each = output.numel()
        shares = x.split(each)
        residuals = residual.split(each) if residual is not None else (None,) * len(shares)
        codes = self._exchange(shares, residuals, self._codec.nbytes(each))
        self._mean(codes, output)
        return (self._size - 1) * self._codec.nbytes(each)

    def _exchange(
        self, shares: tuple[torch.Tensor, ...], residuals: tuple[torch.Tensor | None, ...], row: int
    ) -> torch.Tensor:
        """Every rank's code of this rank's share: (ranks, bytes) in rank order, until the next call."""
        sent = self._codes("sent", row, shares[0].device)
        for share, residual, out in zip(shares, residuals, sent, strict=False):
            code = out[: self._codec.nbytes(share.numel())]
            if residual is None:
                self._codec.encode(share, code)
            else:
                self._codec.encode_with_residual(share, residual, code)
        received = self._codes("received", row, shares[0].device)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=self._group)
        return received

    def _codes(self, name: str, row: int, device: torch.device) -> torch.Tensor:
        return self._scratch.get(name, self._size * row, torch.uint8, device).view(self._size, row)

    def _mean(self, codes: torch.Tensor, out: torch.Tensor) -> None:
        self._codec.decode(codes[0], out)
        for row in codes[1:]:
            self._codec.decode_add(row, out)
        out.div_(self._size)

    def _answer(
        self, codes: torch.Tensor, share: torch.Tensor, residual: torch.Tensor | None, answer: torch.Tensor
    ) -> None:
        """The code of the mean of this rank's share."""
        count = share.numel()
        code = answer[: self._codec.nbytes(count)]
        loss = None
        if residual is not None:  # a block that is not finite leaves its loss as it is
            loss = self._scratch.get("loss", count, torch.float32, share.device).zero_()
        self._codec.decode_sum_encode(
            codes[:, : self._codec.nbytes(count)], count, code, divisor=self._size, residual=loss
        )
        if residual is not None and loss is not None:
            residual.add_(loss, alpha=self._size)


class _OverHosts:
    """One call after the other, on one thread or stream. What is encoded is a host's sum, as in the library: so a
    residual means the same wherever it is loaded."""

    def __init__(self, hosts: Nodes, codec: Codec) -> None:
        self._inside = hosts.inside
        self._between = _OverGroup(hosts.between, codec)
        self._order = torch.tensor(hosts.order)
        self._block = codec.block
        self._scratch = ScratchBuffers()

    def average(self, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        here, elements = self._inside.size(), x.numel()
        each = _share(elements, here, self._block)
        whole = self._floats("whole", here * each, x.device)
        whole[:elements].copy_(x)
        whole[elements:].zero_()
        own = self._floats("own", each, x.device)
        reduce_scatter_single(own, whole, group=self._inside)
        first = min(self._inside.rank() * each, elements)
        last = min(first + each, elements)
        sent = 0
        if first < last:
            sent = self._between.average(own[: last - first], None if residual is None else residual[first:last])
        all_gather_single(whole, own, group=self._inside)
        torch.div(whole[:elements], here, out=x)
        return sent

    def reduce_scatter_average(self, output: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        """Without a residual: that of a host's sum would be of other elements than x."""
        here, elements = self._inside.size(), output.numel()
        self._order = self._order.to(x.device)
        rows = self._floats("whole", x.numel(), x.device).view(-1, elements)
        torch.index_select(x.view(-1, elements), 0, self._order, out=rows)
        own = self._floats("own", x.numel() // here, x.device)
        reduce_scatter_single(own, rows.view(-1), group=self._inside)
        sent = self._between.reduce_scatter_average(output, own, None)
        output.div_(here)
        return sent

    def _floats(self, name: str, elements: int, device: torch.device) -> torch.Tensor:
        return self._scratch.get(name, elements, torch.float32, device)
