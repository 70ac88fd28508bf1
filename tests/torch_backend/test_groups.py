# SPDX-License-Identifier: MIT
"""Groups of some ranks, of one, and on several threads; what torch asks a group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import Ranks
from tests.torch_backend import names
from tests.torch_backend.cases import values

if TYPE_CHECKING:
    from tests.support.rank import Here


def subgroups(here: Here) -> None:
    """One of each pair of neighbours, one of all but the first in reverse, and one of a single rank, all at once."""
    pairs = [dist.new_group([rank, rank + 1]) for rank in range(here.size - 1)]
    order = sorted(range(1, here.size), reverse=bool(names.UNSORTED))
    backwards = dist.new_group(order, **names.UNSORTED)
    alone = [dist.new_group([rank]) for rank in range(here.size)]
    works, tensors = [], []
    mine = [rank for rank in (here.rank - 1, here.rank) if 0 <= rank < here.size - 1]
    for rank in mine:
        tensors.append(torch.full((30_000,), 10**here.rank))
        works.append(dist.all_reduce(tensors[-1], group=pairs[rank], async_op=True))
    total = torch.tensor([1])
    dist.all_reduce(total)
    assert total.item() == here.size
    for work in works:
        work.wait()
    assert [int(tensor[-1]) for tensor in tensors] == [10**rank + 10 ** (rank + 1) for rank in mine]
    if here.rank > 0:
        objects: list[Any] = [None] * (here.size - 1)
        dist.all_gather_object(objects, here.rank, group=backwards)
        assert objects == order
        value = torch.tensor([here.rank])
        dist.broadcast(value, src=1, group=backwards)
        assert value.item() == 1
    itself = torch.tensor([5.0, here.rank])
    dist.all_reduce(itself, op=dist.ReduceOp.AVG, group=alone[here.rank])
    dist.barrier(alone[here.rank])
    assert itself.tolist() == [5.0, here.rank]
    for group in (*pairs, backwards, *alone):
        dist.destroy_process_group(group)


def test_subgroups(ranks: Ranks) -> None:
    ranks.run(subgroups)


def alone_in_a_group(here: Here) -> None:
    """With one rank, every collective is a copy."""
    group = [dist.new_group([rank]) for rank in range(here.size)][here.rank]
    given = values(torch.float32, (1000,), here.rank)
    outputs = [torch.zeros(1000) for _ in range(9)]
    dist.all_gather([outputs[0]], given, group=group)
    names.all_gather_single(outputs[1], given, group=group)
    dist.reduce_scatter(outputs[2], [given], group=group)
    names.reduce_scatter_single(outputs[3], given, group=group)
    dist.gather(given, [outputs[4]], group_dst=0, group=group)
    dist.scatter(outputs[5], [given], group_src=0, group=group)
    dist.all_to_all([outputs[6]], [given], group=group)
    dist.all_to_all_single(outputs[7], given, group=group)
    outputs[8].copy_(given)
    dist.reduce(outputs[8], group_dst=0, group=group)
    dist.broadcast(outputs[8], group_src=0, group=group)
    assert all(torch.equal(each, given) for each in outputs)
    dist.destroy_process_group(group)


def test_a_group_of_one(ranks: Ranks) -> None:
    ranks.run(alone_in_a_group)


def many_threads(here: Here) -> None:
    """A group for each thread, all working at once."""
    groups = [dist.new_group() for _ in range(4)]
    totals = [torch.zeros(1) for _ in groups]

    def work(number: int) -> None:
        for _ in range(20):
            totals[number] += 1
            tensor = torch.full((5000,), float(number))
            dist.all_reduce(tensor, group=groups[number])
            if tensor.unique().tolist() != [number * here.size]:
                totals[number] -= 1000

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [total.item() for total in totals] == [20] * len(groups)
    for group in groups:
        dist.destroy_process_group(group)


def test_groups_on_threads_of_their_own(ranks: Ranks) -> None:
    ranks.run(many_threads)


def answers(here: Here) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "bagua_net"
    assert (dist.get_rank(), dist.get_world_size()) == (here.rank, here.size)
    assert (group.rank(), group.size()) == (here.rank, here.size)
    assert dist.get_process_group_ranks(group) == list(range(here.size))
    assert group.group_name
    assert dist.get_backend(here.gloo) == "gloo"
    assert dist.distributed_c10d._device_capability(group) == ["cpu"]
    assert group._get_backend(torch.device("cpu")).name() == "bagua_net"
    with pytest.raises(RuntimeError, match="no backend for cuda"):
        group._get_backend(torch.device("cuda"))


def test_what_torch_asks_about_a_group(ranks: Ranks) -> None:
    ranks.run(answers)
