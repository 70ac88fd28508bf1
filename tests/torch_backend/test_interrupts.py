# SPDX-License-Identifier: MIT
"""Ctrl-C in the middle of a wait, and operations that callbacks start."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

if TYPE_CHECKING:
    from rank import Here

_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)


# ---- Ctrl-C ----


def interrupted(here: Here, what: str) -> str:
    """Rank 0 waits for rank 1, which never comes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
    group = dist.new_group()
    dist.barrier(group)
    told = ""
    if here.rank == 0:
        try:
            here.say("waits")
            if what == "collective":
                dist.all_reduce(torch.ones(3), group=group)
            elif what == "asynchronous":
                dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
            else:
                dist.recv(torch.ones(3), 1, group=group)
        except KeyboardInterrupt:
            told = "interrupted"
        here.say("told")
    here.hear("told")
    group.abort()
    dist.destroy_process_group(group)
    return told


def _asleep(pid: int) -> bool:
    """Is its main thread asleep?"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("what", ["collective", "asynchronous", "message"])
@_TWO
def test_ctrl_c_ends_a_wait(ranks: Ranks, what: str) -> None:
    """Long before the group's timeout, which would fail the test."""
    ranks.begin(interrupted, what)
    ranks.hear("waits")
    process = ranks.process(0)
    while not _asleep(process.pid):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    outcomes = ranks.collect(seconds=30)
    assert [outcomes[rank].value for rank in (0, 1)] == ["interrupted", ""], outcomes


# ---- operations that callbacks start ----


def chained(here: Here) -> None:
    """Each from the callback of the one before: an exchange, a gather, a sum."""
    size, rank = here.size, here.rank
    for step in range(20):
        sent = torch.arange(size, dtype=torch.float32) + 10 * rank + 100 * step
        received, parts, total = torch.empty(size), [torch.empty(size) for _ in range(size)], torch.empty(size)

        def gather(_: Any, received: Any = received, parts: Any = parts) -> Any:
            return dist.all_gather(parts, received, async_op=True).get_future().wait()

        def add(_: Any, parts: Any = parts, total: Any = total) -> None:
            total.copy_(torch.stack(parts).sum(0))
            dist.all_reduce(total)

        work = dist.all_to_all_single(received, sent, async_op=True)
        work.get_future().then(gather).then(add).wait()
        exchanged = [[float(to + 10 * source + 100 * step) for source in range(size)] for to in range(size)]
        assert [part.tolist() for part in parts] == exchanged
        assert total.tolist() == [size * sum(column) for column in zip(*exchanged, strict=True)]


def test_callbacks_that_start_the_next_operation(ranks: Ranks) -> None:
    ranks.run(chained)


def crossed(here: Here) -> str:
    """The main thread goes on while a callback starts an operation: nothing orders the two on all ranks alike."""
    group = dist.new_group()
    total, source = torch.full((100,), 1.0), torch.full((200,), float(here.rank))

    def add(_: Any) -> None:
        dist.all_reduce(total, group=group)

    told = ""
    received = torch.empty(here.size)
    future = dist.all_to_all_single(received, torch.ones(here.size), group=group, async_op=True).get_future().then(add)
    try:
        dist.broadcast(source, src=1, group=group)
        future.wait()
    except (dist.DistBackendError, RuntimeError) as error:
        told = str(error)
    else:
        assert total.tolist() == [float(here.size)] * 100
        assert source.tolist() == [1.0] * 200
    group.abort()
    dist.destroy_process_group(group)
    return told


@_TWO
def test_operations_that_cross_are_right_or_fail(ranks: Ranks) -> None:
    for _ in range(5):
        for told in ranks.run(crossed):
            assert not told or "calls" in told or "abort" in told or "rank" in told, told
