# SPDX-License-Identifier: MIT
"""Messages between neighbours: one to each peer, and one from each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Exchange:
    """One message to each of some peers, and one from each, on their way from here on.

    Raises:
        RuntimeError: a peer is gone, or does not come. It is named by its rank in the group.
    """

    def __init__(
        self, mine: torch.Tensor, theirs: Sequence[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup
    ) -> None:
        """
        Args:
            mine: what each of the peers gets. It and theirs are in use until :meth:`wait` has returned; on a device,
                until its stream has come to that point.
            theirs: of the same shape and type, one for each peer.
            peers: ranks of the group, without this one and all different; each of them names this rank.
        """
        self._group = group
        if mine.device.type == "cuda":
            with _named(peers, group):
                self._works = [(peers, work) for work in _at_once(mine, theirs, peers, group)]
            return
        # gloo can hang in batch_isend_irecv. A send under way does not keep a receive from ending.
        sends = [self._begun(_send, mine, peer) for peer in peers]
        receives = [self._begun(_receive, each, peer) for peer, each in zip(peers, theirs, strict=True)]
        self._works = receives + sends

    def _begun(self, begin: Callable[..., Any], tensor: torch.Tensor, peer: int) -> tuple[Sequence[int], Any]:
        with _named([peer], self._group):
            return [peer], begin(tensor, peer, self._group)

    def wait(self) -> None:
        for peers, work in self._works:
            if work is not None:
                with _named(peers, self._group):
                    work.wait()


def _send(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> Any:
    return dist.isend(tensor, group=group, group_dst=peer)


def _receive(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> Any:
    return dist.irecv(tensor, group=group, group_src=peer)


@contextlib.contextmanager
def _named(peers: Sequence[int], group: dist.ProcessGroup) -> Iterator[None]:
    """gloo says an address only."""
    try:
        yield
    except RuntimeError as error:
        ranks = " or ".join(str(dist.get_global_rank(group, peer)) for peer in peers)
        raise RuntimeError(f"bagua_net.algorithms: the exchange with rank {ranks} has failed: {error}") from error


def _at_once(
    mine: torch.Tensor, theirs: Sequence[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup
) -> list[Any]:
    """NCCL runs messages one after the other, unless they are of one batch: two ranks that send first would wait."""
    operations = []
    for peer, each in zip(peers, theirs, strict=True):
        operations.append(dist.P2POp(dist.isend, mine, group=group, group_peer=peer))
        operations.append(dist.P2POp(dist.irecv, each, group=group, group_peer=peer))
    return list(dist.batch_isend_irecv(operations)) if operations else []
