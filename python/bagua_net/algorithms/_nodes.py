# SPDX-License-Identifier: MIT
"""The ranks of one node, and equal ranks of all nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ._groups import Groups
from ._objects import gathered


@dataclass(frozen=True)
class Nodes:
    inside: dist.ProcessGroup  # this node's ranks
    between: dist.ProcessGroup  # the ranks with this one's number on their node
    order: tuple[int, ...]  # of the ranks of both, as their whole group numbers them: number on the node, then node


def by_host(group: dist.ProcessGroup, groups: Groups, device: torch.device) -> Nodes | None:
    """The group's ranks by their hosts; None: there is one host, each has one rank, or their numbers differ. All ranks
    of the group call this."""
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(gathered(_host(), group, device)):
        hosts.setdefault(host, []).append(rank)
    counts = {len(ranks) for ranks in hosts.values()}
    if len(hosts) == 1 or len(counts) > 1 or counts == {1}:
        return None
    return _made(group, groups, list(hosts.values()))


def _host() -> str:
    """As NCCL tells hosts apart."""
    if chosen := os.environ.get("NCCL_HOSTID"):
        return chosen
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not every kernel has it
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _made(group: dist.ProcessGroup, groups: Groups, nodes: Sequence[Sequence[int]]) -> Nodes:
    """nodes: equally many of the group's ranks each."""
    ranks = dist.get_process_group_ranks(group)
    (mine,) = (node for node in nodes if group.rank() in node)
    equal = [node[mine.index(group.rank())] for node in nodes]
    inside, between = (groups.like(group, [ranks[each] for each in numbers]) for numbers in (mine, equal))
    return Nodes(inside, between, tuple(rank for each in zip(*nodes, strict=True) for rank in each))


def nodes_of(group: dist.ProcessGroup, groups: Groups, per_node: int) -> Nodes:
    """Groups of a group's ranks, which lie on their nodes in order, as torchrun numbers them. All ranks call this.

    Raises:
        ValueError: the ranks cannot be cut into nodes of so many.
    """
    size = group.size()
    if per_node < 1 or size % per_node != 0:
        raise ValueError(
            f"bagua_net.algorithms: {size} ranks cannot be cut into nodes of {per_node}; ranks_per_node must "
            "divide their number"
        )
    numbers = range(size)
    return _made(group, groups, [numbers[first : first + per_node] for first in range(0, size, per_node)])
