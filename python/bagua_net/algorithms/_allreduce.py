# SPDX-License-Identifier: MIT
"""Gradient all-reduce: exact averages, flat or by nodes, or averages of 16-bit floats."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ._algorithm import Algorithm, AlgorithmImpl
from ._context import AlgorithmContext
from ._dispatcher import dispatcher_of
from ._names import all_gather_single, reduce_scatter_single
from ._nodes import Nodes, nodes_of
from ._scratch import ScratchBuffers
from ._sent import sent_by_all_reduce
from ._settings import check_whole

_WIRE = {"": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class GradientAllReduce(Algorithm):
    """Averages gradients exactly, or with ``wire="bfloat16"`` or ``"float16"`` as sums of such floats: half the bytes.

    ``hierarchical``: a reduce-scatter between the ranks of a node, an all-reduce between
    equal ranks of all nodes, and an all-gather on the node, so that a node sends as many bytes as a single rank would.
    Groups of ``bagua_net`` do that by themselves where ranks share memory, and NCCL by its own topology.

    ``ranks_per_node``: 0 for the launcher's ``LOCAL_WORLD_SIZE``.

    Raises:
        ValueError: another ``wire``, or one together with ``hierarchical``; a negative ``ranks_per_node``.
    """

    hierarchical: bool = False
    ranks_per_node: int = 0
    wire: str = ""

    name: ClassVar[str] = "allreduce"

    def __post_init__(self) -> None:
        if self.wire not in _WIRE:
            raise ValueError(f'bagua_net.algorithms: wire={self.wire!r} is not possible; "bfloat16" and "float16" are')
        check_whole(self.name, 0, ranks_per_node=self.ranks_per_node)
        if self.wire and self.hierarchical:
            raise ValueError("bagua_net.algorithms: wire and hierarchical do not go together; leave one out")

    def _settings(self) -> dict[str, Any]:
        return {"hierarchical": self.hierarchical, "ranks_per_node": self._ranks_per_node(), "wire": self.wire}

    def _ranks_per_node(self) -> int:
        if not self.hierarchical:
            return 0
        return self.ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        nodes = nodes_of(context.group, context.groups, self._ranks_per_node()) if self.hierarchical else None
        return AllReduceImpl(context, nodes, _WIRE[self.wire])


class AllReduceImpl(AlgorithmImpl):
    def __init__(self, context: AlgorithmContext, nodes: Nodes | None, wire: torch.dtype | None) -> None:
        self._context = context
        self._nodes = nodes
        self._wire = wire
        self._scratch = ScratchBuffers()
        self._counted = {"elements": 0.0, "bytes": 0.0, "buckets": 0.0}
        self._dispatcher = dispatcher_of(context.wrapper())
        self.resume()

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        self._counted["elements"] += buffer.numel()
        self._counted["buckets"] += 1
        if self._nodes is not None:
            return self._context.runner.post(partial(self._average_by_nodes, buffer, self._nodes))
        if self._wire is not None:
            return self._context.runner.post(partial(self._average_rounded, buffer, self._wire))
        self._count_ring(buffer)
        return self._dispatcher.plain(bucket)

    def _count_ring(self, x: torch.Tensor) -> None:
        self._counted["bytes"] += sent_by_all_reduce(x.nbytes, self._context.size)

    def _average_rounded(self, buffer: torch.Tensor, wire: torch.dtype) -> torch.Tensor:
        x = self._scratch.get("rounded", buffer.numel(), wire, buffer.device).copy_(buffer.div_(self._context.size))
        dist.all_reduce(x, group=self._context.own)
        self._count_ring(x)
        return buffer.copy_(x)

    def _average_by_nodes(self, buffer: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        here = nodes.inside.size()
        whole = buffer.new_zeros(-(-buffer.numel() // here) * here)
        torch.div(buffer, self._context.size, out=whole[: buffer.numel()])
        share = whole.chunk(here)[nodes.inside.rank()].clone()
        reduce_scatter_single(share, whole, group=nodes.inside)
        dist.all_reduce(share, group=nodes.between)
        all_gather_single(whole, share, group=nodes.inside)
        inside, between = 2 * (here - 1) * share.nbytes, sent_by_all_reduce(share.nbytes, nodes.between.size())
        self._counted["bytes"] += inside + between
        return buffer.copy_(whole[: buffer.numel()])

    def stats(self) -> dict[str, float]:
        return dict(self._counted)

    def pause(self) -> None:
        self._dispatcher.set_target(None)

    def resume(self) -> None:
        self._dispatcher.set_target(self.reduce)

    def stop(self) -> None:
        self.pause()
