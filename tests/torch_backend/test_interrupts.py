# SPDX-License-Identifier: MIT
"""Ctrl-C and other signals in the middle of an operation, and operations that callbacks start."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import Ranks
from tests.torch_backend.inside import before_reports, interrupted_from_the_second_on, is_post_of_a_message

if TYPE_CHECKING:
    from tests.support.rank import Here

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


# ---- signals at other moments ----


class Receiver(torch.Tensor):  # type: ignore[misc]
    """Something happens, once, before what was received is stored in it."""

    events: ClassVar[list[Callable[[], None]]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and cls.events:
            cls.events.pop()()
        return super().__torch_function__(func, types, args, kwargs)


def _receiver(event: Callable[[], None]) -> torch.Tensor:
    """Eight numbers that are not contiguous, so that what is received for them has to be stored."""
    Receiver.events.append(event)
    return torch.zeros(16)[::2].as_subclass(Receiver)


def _interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_as_it_stores(here: Here) -> str:
    if here.rank == 0:
        dist.send(torch.full((8,), 3.0), 1)
        return ""
    tensor = _receiver(_interrupt)
    work = dist.group.WORLD.recv([tensor], 0, 0)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert work.wait()
    assert work.is_success()
    return str(tensor.tolist())


@_TWO
def test_ctrl_c_does_not_end_an_operation_that_is_over(ranks: Ranks) -> None:
    """What was received is there after the next wait."""
    assert ranks.run(interrupted_as_it_stores, seconds=40)[1] == str([3.0] * 8)


def ended_as_it_stores(here: Here) -> list[list[float]]:
    """A handler destroys the group; the thread that fulfils the future looks at the operation at that moment."""
    group = dist.new_group()
    if here.rank == 1:
        here.hear("asked")
        dist.send(torch.full((8,), 3.0), 0, group=group)
        dist.destroy_process_group(group)
        return []
    stores, reports, main = threading.Event(), threading.Event(), threading.get_ident()

    def report_meanwhile() -> None:
        if threading.get_ident() != main:
            assert stores.wait(30)
            reports.set()

    def signal_meanwhile() -> None:
        stores.set()
        assert reports.wait(30)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: dist.destroy_process_group(group))
    try:
        with before_reports(report_meanwhile):
            tensor = _receiver(signal_meanwhile)
            work = group.recv([tensor], 1, 0)
            future = work.get_future()
            here.say("asked")
            assert work.wait()
            return [tensor.tolist(), future.wait()[0].tolist()]
    finally:
        signal.signal(signal.SIGUSR1, before)


@_TWO
def test_a_handler_ends_the_group_while_a_message_is_stored(ranks: Ranks) -> None:
    assert ranks.run(ended_as_it_stores, seconds=60)[0] == [[3.0] * 8] * 2


def _interrupted_send(group: Any) -> weakref.ref[Any]:
    """The tensor of a send that Ctrl-C interrupts right after it was posted: the caller gets no work."""

    def interrupt(frame: Any, event: str, _: Any) -> None:
        if event == "return" and is_post_of_a_message(frame.f_code):
            sys.setprofile(None)
            raise KeyboardInterrupt

    tensor = torch.full((300_000,), 5.0)
    sys.setprofile(interrupt)
    try:
        dist.isend(tensor, 1, group=group)
    except KeyboardInterrupt:
        return weakref.ref(tensor)
    finally:
        sys.setprofile(None)
    raise AssertionError("it was not interrupted")


def _interrupted_gather(group: Any) -> weakref.ref[Any]:
    """What the first of two operations sends, where the second one is not posted."""
    tensors, outputs = list(torch.full((2, 100_000), 5.0)), list(torch.empty(2, 200_000))
    with interrupted_from_the_second_on(group):
        try:
            group.all_gather_single_coalesced(outputs, tensors)
        except KeyboardInterrupt:
            return weakref.ref(tensors[0])
    raise AssertionError("it was not interrupted")


def interrupted_as_it_posts(here: Here, what: str) -> None:
    """The library uses the memory until rank 1 comes."""
    group = dist.new_group()
    dist.barrier(group)
    if here.rank == 1:
        here.hear("posted")
        got = torch.empty(300_000 if what == "send" else 200_000)
        if what == "send":
            dist.recv(got, 0, group=group)
        else:
            group.all_gather_single_coalesced([got], [torch.full((100_000,), 5.0)]).wait()
        assert got.unique().tolist() == [5.0]
        dist.destroy_process_group(group)
        return
    tensor = _interrupted_send(group) if what == "send" else _interrupted_gather(group)
    gc.collect()
    assert tensor() is not None
    here.say("posted")
    dist.destroy_process_group(group)
    assert tensor() is None


@pytest.mark.parametrize("what", ["send", "gather"])
@_TWO
def test_what_was_posted_keeps_its_memory_though_ctrl_c_follows(ranks: Ranks, what: str) -> None:
    ranks.run(interrupted_as_it_posts, what, seconds=40)


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
