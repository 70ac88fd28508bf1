# SPDX-License-Identifier: MIT
"""The ranks of one node, and equal ranks of all nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ._job import Job


@dataclass(frozen=True)
class Nodes:
    inside: dist.ProcessGroup  # this node's ranks
    between: dist.ProcessGroup  # the ranks with this one's number on their node


def nodes_of(job: Job, per_node: int) -> Nodes:
    """Groups of the job's ranks, which lie on their nodes in order, as torchrun numbers them. All ranks call this.

    Raises:
        ValueError: the ranks cannot be cut into nodes of so many.
    """
    if per_node < 1 or job.size % per_node != 0:
        raise ValueError(
            f"bagua_net.algorithms: {job.size} ranks cannot be cut into nodes of {per_node}; ranks_per_node must "
            "divide their number"
        )
    ranks = dist.get_process_group_ranks(job.group)
    first = job.rank // per_node * per_node
    inside = job.groups.like(job.group, ranks[first : first + per_node])
    return Nodes(inside, job.groups.like(job.group, ranks[job.rank % per_node :: per_node]))
