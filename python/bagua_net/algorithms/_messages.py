# SPDX-License-Identifier: MIT
"""Messages between neighbours: one to each peer, and one from each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Exchange:
    """One message to each of some peers, and one from each, on their way from here on.

    Raises:
        RuntimeError: a peer is gone, or does not come. It is named by its rank in the job.
    """

    def __init__(
        self, mine: torch.Tensor, theirs: Sequence[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup
    ) -> None:
        """
        Args:
            mine: what each of the peers gets. It and theirs are in use until :meth:`wait`.
            theirs: of the same shape and type, one for each peer.
            peers: ranks of the group, without this one and all different; each of them names this rank.
        """
        self._group = group
        self._works: list[tuple[int, Any]] = []
        if mine.device.type == "cuda":
            self._works = _at_once(mine, theirs, peers, group)
            return
        # gloo can hang in batch_isend_irecv. A send under way does not keep a receive from ending.
        for begin, of in ((_send, [mine] * len(peers)), (_receive, theirs)):
            for peer, each in zip(peers, of, strict=True):
                with _named(peer, group):
                    self._works.append((peer, begin(each, peer, group)))

    def wait(self) -> None:
        for peer, work in self._works:
            if work is not None:
                with _named(peer, self._group):
                    work.wait()


def _send(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> Any:
    return dist.isend(tensor, group=group, group_dst=peer)


def _receive(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> Any:
    return dist.irecv(tensor, group=group, group_src=peer)


@contextlib.contextmanager
def _named(peer: int, group: dist.ProcessGroup) -> Iterator[None]:
    """gloo says an address only."""
    try:
        yield
    except RuntimeError as error:
        rank = dist.get_global_rank(group, peer)
        raise RuntimeError(f"bagua_net.algorithms: the exchange with rank {rank} has failed: {error}") from error


def _at_once(
    mine: torch.Tensor, theirs: Sequence[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup
) -> list[tuple[int, Any]]:
    """NCCL runs messages one after the other, unless they are of one batch: two ranks that send first would wait. The
    works are those of the batch as a whole; a failure is named by the first peer."""
    operations = []
    for peer, each in zip(peers, theirs, strict=True):
        operations.append(dist.P2POp(dist.isend, mine, group=group, group_peer=peer))
        operations.append(dist.P2POp(dist.irecv, each, group=group, group_peer=peer))
    return [(peers[0], work) for work in (dist.batch_isend_irecv(operations) if operations else [])]
