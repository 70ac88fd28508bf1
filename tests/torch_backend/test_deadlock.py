# SPDX-License-Identifier: MIT
"""Ranks that wait for each other in different groups are told at once, with all calls; others never are."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import Auto, DiLoCo, attach
from bagua_net.torch import _blocked
from bagua_net.torch import _deadlock as deadlock
from bagua_net.torch._wait_for_graph import Call, Part, Record, deadlocked, in_vain
from tests.support.rank import Here
from tests.support.ranks import Ranks
from tests.support.tiers import variants

_SECONDS = 60  # much less than the groups' timeout
_CIRCLE = "ranks wait for each other, in different groups"


# ---- what makes a deadlock ----


def _in(group: str, over: int = 0, source: int = -1) -> list[list[Call]]:
    return [[Call(group, over, source)]]


def _record(rank: int, threads: list[list[Call]], sent: dict[int, int] | None = None, **posted: int) -> Record:
    """Of the groups a, b, …, in which all have the same ranks."""
    return Record({name: Part(rank, count, sent or {}) for name, count in posted.items()}, threads, [""])


def test_two_that_wait_in_different_groups() -> None:
    records = {0: _record(0, _in("a", 4), a=5, b=2), 1: _record(1, _in("b", 2), a=4, b=3)}
    assert deadlocked(records) == {0, 1}


def test_a_rank_that_has_called_it_too_is_not_waited_for() -> None:
    """What it has called may be on its way."""
    records = {0: _record(0, _in("a", 4), a=5, b=2), 1: _record(1, _in("b", 2), a=5, b=3)}
    assert not deadlocked(records)


def test_those_that_wait_for_one_that_computes() -> None:
    records = {rank: _record(rank, _in("a", 4), a=5, b=0) for rank in (0, 1, 3)}
    assert not deadlocked(records)


def test_a_thread_that_waits_for_nobody_of_them_may_free_the_others() -> None:
    records = {
        0: _record(0, [[Call("a", 0, -1)], [Call("c", 0, -1)]], a=1, b=0, c=1),
        1: _record(1, _in("b"), a=0, b=1, c=1),
    }
    assert not deadlocked(records)


def test_others_that_wait_for_those_in_a_circle_are_of_it() -> None:
    records = {
        0: _record(0, _in("a"), a=1, b=0),
        1: _record(1, _in("b"), a=0, b=1),
        2: _record(2, _in("a"), a=1, b=0),
        3: _record(3, _in("c"), a=1, b=1, c=1),
    }
    assert deadlocked(records) == {0, 1, 2}


@pytest.mark.parametrize(("arrived", "expected"), [(3, {0, 1}), (2, set())])
def test_a_receive_waits_for_its_source_where_all_that_it_sent_has_arrived(arrived: int, expected: set[int]) -> None:
    records = {
        0: _record(0, _in("a"), {1: 3}, a=1, b=0),
        1: _record(1, _in("b", arrived, source=0), a=0, b=0),
    }
    assert deadlocked(records) == expected


def test_what_some_will_never_finish() -> None:
    """Not what a thread of theirs waits for beside that."""
    records = {
        0: _record(0, [[Call("a", 0, -1), Call("c", 0, -1)]], a=1, b=0, c=1),
        1: _record(1, _in("b"), a=0, b=1, c=1),
    }
    assert deadlocked(records) == {0, 1}
    assert {(call.group, call.over) for call in in_vain(records, {0, 1})} == {("a", 0), ("b", 0)}


# ---- real ranks ----


@pytest.fixture
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


@pytest.fixture
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


def _crossed(here: Here, second: Callable[[Here, Any], None]) -> None:
    """Rank 1 goes another way than the others."""
    group = dist.new_group(timeout=here.timeout)
    dist.barrier()
    dist.barrier(group)
    if here.rank == 1:
        second(here, group)
    else:
        dist.all_reduce(torch.ones(3))


def _collective(_: Here, group: Any) -> None:
    dist.broadcast(torch.ones(3), 0, group=group)


def _later(_: Here, group: Any) -> None:
    works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(2)]
    works[1].wait()


def _receive(_: Here, group: Any) -> None:
    dist.recv(torch.ones(3), 2, group=group)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("way", "call"),
    variants((_receive, "recv"), nightly=[(_collective, "broadcast"), (_later, "a wait")]),
)
def test_all_are_told_both_calls(three: Ranks, way: Callable[[Here, Any], None], call: str) -> None:
    outcomes = three.outcomes(_crossed, way, seconds=_SECONDS)
    for outcome in outcomes:
        # Rank 2 may come so late that the others have been told.
        assert re.search(rf"{_CIRCLE}: ranks? 0(, 2)? in all_reduce \(test_deadlock.py, line \d+\), ", outcome.error)
        assert re.search(rf"rank 1 in {call} \(test_deadlock.py, line \d+\), group ", outcome.error)


def _late(here: Here) -> None:
    """Ranks 0 and 1 have been told before rank 2 calls what rank 0 had called."""
    group = dist.new_group(timeout=here.timeout)
    dist.barrier()
    dist.barrier(group)
    if here.rank == 2:
        here.hear("0 is told", "1 is told")
        dist.all_reduce(torch.ones(3))
        return
    try:
        if here.rank == 1:
            dist.broadcast(torch.ones(3), 0, group=group)
        else:
            dist.all_reduce(torch.ones(3))
    except dist.DistBackendError:
        here.say(f"{here.rank} is told")
        raise


@pytest.mark.gate
def test_who_comes_later_is_told_as_well(three: Ranks) -> None:
    for outcome in three.outcomes(_late, seconds=_SECONDS):
        assert re.search(rf"{_CIRCLE}: rank 0 in all_reduce \(test_deadlock.py, line \d+\), group ", outcome.error)
        assert re.search(r"rank 1 in broadcast \(test_deadlock.py, line \d+\), group ", outcome.error)


def _goes_on(here: Here) -> float:
    """After a deadlock the ranks use another group, in which one waits for the other for some time."""
    groups = [dist.new_group(timeout=here.timeout) for _ in range(3)]
    for group in groups:
        dist.barrier(group)
    with pytest.raises(dist.DistBackendError, match=_CIRCLE):
        dist.barrier(groups[here.rank])
    if here.rank == 1:
        here.hear("blocked")
    else:
        thread = threading.Thread(target=_say_when_blocked, args=(here,))
        thread.start()
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=groups[2])
    return float(tensor)


@pytest.mark.nightly
def test_ranks_that_were_told_may_go_on_in_another_group(two: Ranks) -> None:
    assert two.run(_goes_on) == [2.0, 2.0]


def _works_on(here: Here) -> float:
    """Rank 1 has called what rank 0 calls last, and calls what rank 0 waits in when that is known to be blocked."""
    group, tensor = dist.new_group(timeout=here.timeout), torch.ones(1)
    dist.barrier()
    if here.rank == 1:
        early = dist.all_reduce(tensor, group=group, async_op=True)
        here.hear("blocked")
        dist.barrier()
        early.wait()
    else:
        thread = threading.Thread(target=_say_when_blocked, args=(here,))
        thread.start()
        dist.barrier()
        dist.all_reduce(tensor, group=group)
        thread.join()
    dist.destroy_process_group(group)
    return float(tensor)


def _say_when_blocked(here: Here) -> None:
    """And has looked for a decision since. It waits as threads do that wait for others of their process."""
    pause = threading.Event()
    while deadlock.watch._part is None or deadlock.watch._part._record is None:
        pause.wait(0.01)
    polls = deadlock.watch._part._poll_at
    while deadlock.watch._part._poll_at == polls:
        pause.wait(0.01)
    here.say("blocked")


@pytest.mark.nightly
def test_one_that_works_on_is_waited_for(two: Ranks) -> None:
    assert two.run(_works_on) == [2.0, 2.0]


def _loads(here: Here) -> float:
    """A thread that has called nothing yet is at work while all others wait for what it will call."""
    group, tensor = dist.new_group(timeout=here.timeout), torch.ones(1)
    dist.barrier()

    def load_and_tell() -> None:
        time.sleep(2 * deadlock.QUIET_S)  # nothing that it does may be seen
        dist.broadcast(tensor, 0, group=group)

    if here.rank == 0:
        thread = threading.Thread(target=load_and_tell)
        thread.start()
        dist.barrier()
        thread.join()
    else:
        dist.broadcast(tensor, 0, group=group)
        dist.barrier()
    dist.destroy_process_group(group)
    return float(tensor)


@pytest.mark.nightly
def test_a_thread_that_may_yet_call_is_waited_for(two: Ranks) -> None:
    assert two.run(_loads) == [1.0, 1.0]


def _is_signalled_later(here: Here) -> float:
    """A handler saves in a group of its own; the other rank gets the signal later, in the next collective."""
    group, saved = dist.new_group(timeout=here.timeout), torch.ones(1)
    signal.signal(signal.SIGUSR1, lambda *_: dist.all_reduce(saved, group=group))
    dist.barrier()
    if here.rank == 0:
        os.kill(os.getpid(), signal.SIGUSR1)  # it waits in the handler
    else:
        threading.Timer(2 * deadlock.QUIET_S, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    dist.barrier()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    dist.destroy_process_group(group)
    return float(saved)


@pytest.mark.nightly
def test_handlers_that_come_one_after_the_other_are_waited_for(two: Ranks) -> None:
    assert two.run(_is_signalled_later) == [2.0, 2.0]


def _one_by_one(_: Here) -> list[bool]:
    """Is there a thread that watches: with one group, with two, with one again?"""
    told = [_watches()]
    group = dist.new_group()
    told.append(_watches())
    dist.destroy_process_group(group)
    return [*told, _watches()]


class _StartsAThread:
    """When it is collected: nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        threading.Thread(target=time.monotonic).start()


def _look_among_garbage(_: Here) -> bool:
    """The frames of this many threads are allocated: before Python 3.12 that begins a collection."""
    release = threading.Event()
    others = [threading.Thread(target=release.wait) for _ in range(40)]
    for each in others:
        each.start()
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(20, 1000, 1000)
    _StartsAThread()
    seen = _blocked.frames_of_all()
    gc.set_threshold(*before)
    release.set()
    for each in others:
        each.join()
    return gc.isenabled() and {each.ident for each in others} <= seen.keys()


@pytest.mark.gate
def test_a_collection_while_the_threads_are_looked_at(two: Ranks) -> None:
    assert two.run(_look_among_garbage, seconds=20) == [True, True]


def _computes(_: Here) -> list[int]:
    """How many threads wait, at each of two looks into a backward that computes between them."""
    x = torch.randn(400, 400, requires_grad=True)
    y = x
    for _step in range(400):
        y = y @ x * 1e-2
    main = threading.main_thread()
    found: list[int] = []

    def look() -> None:
        works: Any = [SimpleNamespace(has_futures=lambda: True)]
        while main.is_alive() and len(found) < 2:
            frame = _blocked.frames_of_all().get(main.ident or 0)
            if frame is not None and _blocked._waits_within(frame):
                found.append(len(_blocked.threads((), works)))
            since = time.process_time()
            while time.process_time() - since < 0.3:  # which the other thread takes
                time.sleep(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    while len(found) < 2:
        y.sum().backward(retain_graph=True)
    thread.join()
    return found


@pytest.mark.gate
def test_a_backward_that_computes_is_no_wait(two: Ranks) -> None:
    assert two.run(_computes, seconds=60) == [[0, 0]] * 2


def _watches() -> bool:
    return any(thread.name == "bagua_net watch" for thread in threading.enumerate())


@pytest.mark.gate
def test_only_processes_with_several_groups_are_watched(two: Ranks) -> None:
    assert two.run(_one_by_one) == [[False, True, False]] * 2


def _uneven(here: Here, name: str) -> None:
    """Rank 1 has two batches more."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = DiLoCo(1, outer_lr=0.7) if name == "diloco" else Auto(trial_steps=1) if name == "auto" else name
    attach(model, optimizer, algorithm)
    for _ in range(6 if here.rank == 1 else 4):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    dist.all_reduce(torch.ones(3))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", variants("bytegrad", nightly=["diloco", "decentralized", "low_precision_decentralized", "auto"])
)
def test_a_rank_with_more_batches_under_an_algorithm(two: Ranks, name: str) -> None:
    for outcome in two.outcomes(_uneven, name, seconds=_SECONDS):
        assert re.search(rf"{_CIRCLE}: rank 0 in all_reduce \(test_deadlock.py, line \d+\), group 0", outcome.error)
        assert re.search(
            r"rank 1 in [a-z_' ]+ \(test_deadlock.py, line \d+\), group \d+ \(an algorithm's\)", outcome.error
        )
