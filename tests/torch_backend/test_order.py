# SPDX-License-Identifier: MIT
"""Collectives that callbacks start: their place among all others is the same on all ranks."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.support.rank import Here
from tests.support.ranks import Ranks


def started_by_callbacks(here: Here, size: int) -> None:
    """Ten operations, each with a callback that starts another one and waits for it, and a callback of that one that
    starts a third. On rank 0 callbacks run at once; on the others not before all ten are posted."""
    posted = threading.Event()
    if here.rank == 0:
        posted.set()
    results: list[torch.Tensor] = [torch.zeros(0)] * 10
    last = []

    def third(number: int, future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        x = future.value()[0] * (number + 1)
        dist.all_reduce(x)
        return x

    def second(number: int, future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():  # which runs those of operations that are over
            posted.wait(here.timeout.total_seconds())
        work = dist.all_reduce(future.value()[0], async_op=True)
        results[number] = work.get_future().then(partial(third, number)).wait()
        return results[number]

    for number in range(10):
        x = torch.full((size,), float(number + here.rank))
        last.append(dist.all_reduce(x, async_op=True).get_future().then(partial(second, number)))
    posted.set()
    torch.futures.wait_all(last)
    for number in range(10):
        first = sum(number + rank for rank in range(here.size))
        assert torch.equal(results[number], torch.full((size,), float(first * here.size**2 * (number + 1)))), number
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == here.size


@pytest.mark.parametrize("size", [3, 100_000])
def test_what_callbacks_start_has_one_order_on_all_ranks(ranks: Ranks, size: int) -> None:
    ranks.run(started_by_callbacks, size)
