# SPDX-License-Identifier: MIT
"""Groups that end, or fail to start, in the middle of something: by another thread, a signal, a fork."""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import Ranks, refusal
from tests.torch_backend.inside import after_the_start_of_messages, runs_in_the_library, waits_in_the_store

pytestmark = pytest.mark.gate

if TYPE_CHECKING:
    from tests.support.rank import Here

_LONG = timedelta(seconds=300)
#: Seconds between two polls of another thread's progress: that thread needs the GIL.
_PAUSE = 0.001
#: Seconds in which a handler ends, or else never does.
_HANDLER_S = 30


# ---- another thread ----


def aborted_in_shutdown(here: Here, name: str) -> str:
    """One thread of rank 0 ends the group and waits for an operation that never ends; another thread aborts."""
    group = dist.new_group(timeout=_LONG)
    dist.barrier(group)
    told = ""
    if here.rank == 0:
        tensor = torch.ones(1_000_000)
        work = dist.isend(tensor, 1, group=group) if name == "send" else dist.barrier(group, async_op=True)
        thread = threading.Thread(target=group.shutdown)
        thread.start()
        while "was shut down" not in refusal(lambda: dist.barrier(group, async_op=True)):
            time.sleep(_PAUSE)  # until it has begun
        group.abort()
        thread.join()
        told = refusal(work.wait)
    here.meet("rank 0 is free")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("name", ["collective", "send"])
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_abort_ends_a_shutdown_that_waits(ranks: Ranks, name: str) -> None:
    assert ranks.run(aborted_in_shutdown, name, seconds=40)[0].startswith("DistBackendError: ")


def aborted_before_it_is_made(here: Here, name: str) -> str:
    """Rank 0 waits for ranks that do not make the group, which would take minutes."""
    group = dist.new_group(None if here.rank == 0 else [0], timeout=_LONG)
    if here.rank != 0:
        return ""
    told: list[str] = []
    tensor = torch.ones(3)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "send": lambda: dist.send(tensor, 1, group=group),
    }
    thread = threading.Thread(target=lambda: told.append(refusal(calls[name])))
    thread.start()
    while not waits_in_the_store(thread):
        time.sleep(_PAUSE)
    group.abort()
    thread.join()
    dist.destroy_process_group(group)
    return told[0]


@pytest.mark.parametrize("name", ["all_reduce", "send"])
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_abort_ends_a_wait_for_ranks_that_never_make_the_group(ranks: Ranks, name: str) -> None:
    told = ranks.run(aborted_before_it_is_made, name, seconds=40)[0]
    assert "aborted while rank 1 had not made this group" in told


def ended_by_all(here: Here) -> None:
    """In any order, everything is released once."""
    group = dist.new_group()
    dist.barrier(group)
    here.meet("connected")
    ends = [group.shutdown, group.abort] * 4
    threads = [threading.Thread(target=end) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.destroy_process_group(group)


def test_a_group_that_is_ended_by_many_threads_at_once(ranks: Ranks) -> None:
    for _ in range(5):
        ranks.run(ended_by_all, seconds=40)


def ended_by_its_callbacks(here: Here) -> list[str]:
    """An operation fails; two callbacks and the waiting thread all react by ending the group."""
    group = dist.new_group(timeout=_LONG)
    dist.barrier(group)
    if here.rank != 0:
        here.hear("asked")
        dist.destroy_process_group(group)
        return []
    told: list[str] = []
    met = threading.Barrier(3, timeout=30)

    def end(future: Any) -> None:
        told.append(refusal(future.value))
        met.wait()
        group.abort()

    works = [dist.barrier(group, async_op=True) for _ in range(2)]
    futures = [work.get_future().then(end) for work in works]
    here.say("asked")
    told.append(refusal(works[0].wait))
    met.wait()
    group.shutdown()
    for future in futures:
        future.wait()
    dist.destroy_process_group(group)
    return told


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_group_that_is_ended_by_its_callbacks(ranks: Ranks) -> None:
    told = ranks.run(ended_by_its_callbacks, seconds=60)[0]
    assert len(told) == 3
    assert all("allreduce" in one or "barrier" in one for one in told)


# ---- a signal ----


def _reporter(here: Here, group: Any) -> threading.Thread | None:
    """The thread that waits for the ends of asynchronous operations, on rank 0, once there is one."""
    if here.rank != 0:
        here.hear("asked")
        dist.barrier(group)
        dist.barrier(group)
        return None
    future = dist.barrier(group, async_op=True).get_future()
    here.say("asked")
    future.wait()
    dist.barrier(group)  # which comes after the future's callbacks: the next one finds nothing before it
    return next(thread for thread in threading.enumerate() if thread.name == f"group {group.group_name} futures")


def _interrupted_and_destroyed(here: Here, group: Any) -> bool:
    """A handler interrupts an operation of its own thread, on rank 0, and destroys the group. Has it come to its end
    before rank 1 began the operation, with which it could have ended for another reason?"""
    main, handled, in_time = threading.get_ident(), threading.Event(), threading.Event()

    def end(*_: Any) -> None:
        dist.destroy_process_group(group)
        handled.set()

    def send_signal() -> None:
        while not runs_in_the_library(main):
            time.sleep(_PAUSE)
        signal.pthread_kill(main, signal.SIGWINCH)
        if handled.wait(_HANDLER_S):
            in_time.set()
        here.say("handled")

    if here.rank != 0:
        here.hear("handled")
        refusal(lambda: dist.barrier(group))
        dist.destroy_process_group(group)
        return True
    before = signal.signal(signal.SIGWINCH, end)
    thread = threading.Thread(target=send_signal)
    thread.start()
    refusal(lambda: dist.barrier(group))
    thread.join()
    signal.signal(signal.SIGWINCH, before)
    return in_time.is_set()


def ended_by_a_signal(here: Here, with_futures: bool) -> bool:
    group = dist.new_group()
    dist.barrier(group)
    reporter = _reporter(here, group) if with_futures else None
    handled = _interrupted_and_destroyed(here, group)
    if reporter is not None:
        reporter.join(30)
        assert not reporter.is_alive()
    return handled


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_handler_of_a_signal_destroys_the_group(ranks: Ranks) -> None:
    assert ranks.run(ended_by_a_signal, False, seconds=60) == [True, True]


def test_a_handler_destroys_the_group_while_a_thread_waits_for_ends() -> None:
    with _perturbed() as ranks:
        assert ranks.run(ended_by_a_signal, True, seconds=60) == [True, True]


def _perturbed() -> Ranks:
    """Freed memory is filled with "Z"."""
    return Ranks(2, {"MALLOC_PERTURB_": "90", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})


# ---- a fork ----


def used_in_a_child(here: Here) -> list[str]:
    """A child of fork() gets an error that the group is its parent's; ending it does not harm the parent."""
    for work in (dist.barrier(async_op=True), dist.isend(torch.ones(2), (here.rank + 1) % here.size)):
        assert work is not None
    dist.recv(torch.zeros(2), (here.rank - 1) % here.size)
    here.meet("connected")
    group = dist.group.WORLD
    assert group is not None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # otherwise a hang would outlive the test
        told = [
            refusal(lambda: dist.barrier()),
            refusal(lambda: dist.all_reduce(torch.ones(1), async_op=True)),
            refusal(lambda: dist.send(torch.ones(1), (here.rank + 1) % here.size)),
            refusal(group.shutdown),
            refusal(group.abort),
        ]
        os.write(writer, "\n".join(told).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert status == 0
    dist.barrier()
    return said


def test_a_forked_child_does_not_use_its_parent_s_group(ranks: Ranks) -> None:
    for said in ranks.run(used_in_a_child, seconds=40):
        assert len(said) == 5
        for text in said[:3]:
            assert "belongs to the process that forked this one; make a group here" in text
        assert said[3:] == ["accepted", "accepted"]


# ---- missing resources ----


def ended_by_a_signal_as_it_fails(here: Here) -> str:
    """The same, where the interrupted operation then fails: the text of its error belonged to the group."""
    group = dist.new_group()
    dist.barrier(group)
    main, options = threading.get_ident(), dist.BarrierOptions()
    options.asyncOp = False

    def send_signal() -> None:
        while not runs_in_the_library(main):
            time.sleep(_PAUSE)
        signal.pthread_kill(main, signal.SIGWINCH)
        here.say("signalled")

    if here.rank != 0:
        here.hear("signalled")
        dist.destroy_process_group(group)
        return ""
    before = signal.signal(signal.SIGWINCH, lambda *_: dist.destroy_process_group(group))
    thread = threading.Thread(target=send_signal)
    thread.start()
    told = refusal(lambda: group.barrier(options))  # torch's own would ask the group for its name
    thread.join()
    signal.signal(signal.SIGWINCH, before)
    return told


@pytest.mark.nightly
def test_what_fails_after_a_handler_has_destroyed_the_group_says_why() -> None:
    with _perturbed() as ranks:
        assert "rank 1, on this host, has left the group" in ranks.run(ended_by_a_signal_as_it_fails, seconds=40)[0]


def ended_by_a_signal_while_it_posts(here: Here, asked: str) -> tuple[str, list[str]]:
    """The handler runs when the messages' thread has just started and nothing is posted yet. Returns also the threads
    that are left; some of an earlier test may end meanwhile."""
    before_it = threading.enumerate()
    group = dist.new_group()
    before = signal.signal(signal.SIGUSR1, lambda *_: getattr(group, asked)())
    after_the_start_of_messages(group, lambda: signal.raise_signal(signal.SIGUSR1))
    told = refusal(lambda: dist.irecv(torch.ones(1), (here.rank + 1) % here.size, group=group))
    signal.signal(signal.SIGUSR1, before)
    dist.destroy_process_group(group)
    return told, [thread.name for thread in threading.enumerate() if thread not in before_it]


@pytest.mark.parametrize("asked", ["abort", "shutdown"])
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_handler_of_a_signal_ends_the_group_in_the_middle_of_a_post(ranks: Ranks, asked: str) -> None:
    for told, left in ranks.run(ended_by_a_signal_while_it_posts, asked, seconds=40):
        assert re.match("DistBackendError: .* was shut down; make a new group", told)
        assert left == []


@contextmanager
def _no_more_threads() -> Iterator[None]:
    """No thread can start: the stack size is too large."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def callbacks_without_threads(here: Here) -> float:
    """Callbacks of a future still run, on an existing thread."""
    group = dist.new_group()
    dist.barrier(group, async_op=True).wait()
    tensor = torch.ones(1)
    if here.rank == 0:
        with _no_more_threads(), pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
    with _no_more_threads():
        work = dist.all_reduce(tensor, group=group, async_op=True)
        future = work.get_future().then(lambda _: tensor.item())
        work.wait()
        value = float(future.wait())
        dist.barrier(group)
    dist.destroy_process_group(group)
    return value


def test_callbacks_where_no_thread_can_start(ranks: Ranks) -> None:
    assert ranks.run(callbacks_without_threads, seconds=40) == [float(ranks.size)] * ranks.size


def operations_without_threads(here: Here) -> list[str]:
    """An operation that needs a thread of Python fails with that reason, others work, and the group can end."""
    group = dist.new_group()
    with _no_more_threads():
        told = [
            refusal(lambda: dist.all_reduce(torch.ones(1), group=group, async_op=True)),
            refusal(lambda: dist.isend(torch.ones(1), (here.rank + 1) % here.size, group=group)),
        ]
        dist.barrier(group)
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    told.append(refusal(lambda: dist.barrier(group)))
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_operations_where_no_thread_can_start(ranks: Ranks) -> None:
    for told in ranks.run(operations_without_threads, seconds=40):
        assert told == ["RuntimeError: can't start new thread", "accepted", "accepted"]


def _descriptors() -> set[int]:
    names = [int(link.name) for link in Path("/proc/self/fd").iterdir()]
    return {number for number in names if Path(f"/proc/self/fd/{number}").exists()}  # without that of the directory


def _settled(wanted: set[int] | None) -> set[int]:
    """The open descriptors, once as wanted or unchanged between two polls; at the latest after some seconds."""
    deadline = time.monotonic() + 10
    last: set[int] = set()
    while (found := _descriptors()) != (last if wanted is None else wanted) and time.monotonic() < deadline:
        last = found
        time.sleep(0.05)
    return found


def made_with_too_few_descriptors(here: Here) -> list[set[int]]:
    """At whichever step making a group fails, everything that it opened is closed again."""
    dist.destroy_process_group()  # its descriptors would serve this one as well
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _settled(None)
    free = [number for number in range(len(before) + 100) if number not in before]
    left = []
    for enough in free[:40]:
        store = dist.HashStore()
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        told = refusal(partial(_make, store, 4))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if told == "accepted":
            break
        assert told.startswith("DistBackendError: bagua_net, group made: "), told
        left.append(_settled(before) - before)
    assert left, "it never failed"
    here.join()
    return left


def _make(store: dist.Store, size: int) -> None:
    from bagua_net.torch import ProcessGroupBaguaNet

    ProcessGroupBaguaNet(store, 0, size, _LONG, "made").abort()


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_nothing_is_left_of_a_group_that_cannot_be_made(ranks: Ranks) -> None:
    for left in ranks.run(made_with_too_few_descriptors, seconds=60):
        assert left == [set()] * len(left)
