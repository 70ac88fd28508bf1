# SPDX-License-Identifier: MIT
"""The ranks of one node, and equal ranks of all nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ._context import AlgorithmContext


@dataclass(frozen=True)
class Nodes:
    inside: dist.ProcessGroup  # this node's ranks
    between: dist.ProcessGroup  # the ranks with this one's number on their node


def nodes_of(context: AlgorithmContext, per_node: int) -> Nodes:
    """Groups of the context's ranks, which lie on their nodes in order, as torchrun numbers them. All ranks call this.

    Raises:
        ValueError: the ranks cannot be cut into nodes of so many.
    """
    if per_node < 1 or context.size % per_node != 0:
        raise ValueError(
            f"bagua_net.algorithms: {context.size} ranks cannot be cut into nodes of {per_node}; ranks_per_node must "
            "divide their number"
        )
    ranks = dist.get_process_group_ranks(context.group)
    first = context.rank // per_node * per_node
    inside = context.groups.like(context.group, ranks[first : first + per_node])
    return Nodes(inside, context.groups.like(context.group, ranks[context.rank % per_node :: per_node]))
