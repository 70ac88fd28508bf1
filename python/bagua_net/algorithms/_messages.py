# SPDX-License-Identifier: MIT
"""Messages between neighbours: one to each peer, and one from each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist


def exchanged(mine: torch.Tensor, peers: Sequence[int], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Sends a tensor to each of the peers, and returns theirs, of the same shape and type.

    peers: ranks of the group, without this one and all different; each of them names this rank.

    Raises:
        RuntimeError: a peer is gone, or does not come. It is named by its rank in the job.
    """
    theirs = [torch.empty_like(mine) for _ in peers]
    if mine.device.type == "cuda":
        _at_once(mine, theirs, peers, group)
        return theirs
    # gloo can hang in batch_isend_irecv. A send under way does not keep a receive from ending.
    sends = []
    for peer in peers:
        with _named(peer, group):
            sends.append(dist.isend(mine, group=group, group_dst=peer))
    for peer, each in zip(peers, theirs, strict=True):
        with _named(peer, group):
            dist.recv(each, group=group, group_src=peer)
    for peer, send in zip(peers, sends, strict=True):
        if send is not None:
            with _named(peer, group):
                send.wait()
    return theirs


@contextlib.contextmanager
def _named(peer: int, group: dist.ProcessGroup) -> Iterator[None]:
    """gloo says an address only."""
    try:
        yield
    except RuntimeError as error:
        rank = dist.get_global_rank(group, peer)
        raise RuntimeError(f"bagua_net.algorithms: the exchange with rank {rank} has failed: {error}") from error


def _at_once(mine: torch.Tensor, theirs: list[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup) -> None:
    """NCCL runs messages one after the other, unless they are of one batch: two ranks that send first would wait."""
    operations = []
    for peer, each in zip(peers, theirs, strict=True):
        operations.append(dist.P2POp(dist.isend, mine, group=group, group_peer=peer))
        operations.append(dist.P2POp(dist.irecv, each, group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
