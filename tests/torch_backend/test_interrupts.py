# SPDX-License-Identifier: MIT
"""Signal handlers that run during an operation: one that raises ends the group, one that returns changes nothing. And
operations that callbacks start."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import ProcessGroupBaguaNet
from tests.support.ranks import Ranks, refusal
from tests.torch_backend.inside import after_each_row, before_reports, runs_in_the_library, waits_for_an_operation

if TYPE_CHECKING:
    from tests.support.rank import Here

_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)
#: While the first has a handler, no collective runs on the main thread.
_ANNOUNCED, _OTHER = signal.SIGUSR1, signal.SIGWINCH
#: A test that waits for it fails.
_LONG = timedelta(seconds=300)
_OVER = "it ended when a signal handler raised KeyboardInterrupt during one of its operations; make a new group"


# ---- waits: rank 0 waits for rank 1, which comes when it has heard "go on" ----


def _sum(group: Any) -> float:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return float(tensor.sum())


def _sum_later(group: Any) -> float:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group, async_op=True).wait()
    return float(tensor.sum())


def _sum_in_a_callback(group: Any) -> float:
    """On this very thread, since the future is fulfilled."""
    future = torch.futures.Future()
    future.set_result(None)
    return float(future.then(lambda _: _sum(group)).wait())


def _receive(group: Any) -> float:
    tensor = torch.zeros(3)
    dist.recv(tensor, 1, group=group)
    return float(tensor.sum())


def _send(group: Any) -> float:
    dist.send(torch.full((300_000,), 2.0), 1, group=group)
    return 6.0


def _give(group: Any) -> float:
    dist.send(torch.full((3,), 2.0), 0, group=group)
    return 6.0


def _take(group: Any) -> float:
    tensor = torch.zeros(300_000)
    dist.recv(tensor, 0, group=group)
    return float(tensor[:3].sum())


#: Of rank 0, and of rank 1.
_WAITS: dict[str, tuple[Callable[[Any], float], Callable[[Any], float]]] = {
    "collective": (_sum, _sum),
    "asynchronous": (_sum_later, _sum),
    "callback": (_sum_in_a_callback, _sum),
    "receive": (_receive, _give),
    "send": (_send, _take),
}


def _connected() -> Any:
    """A group that has exchanged some of everything."""
    group = dist.new_group(timeout=_LONG)
    mine = (_send, _receive) if dist.get_rank() == 0 else (_take, _give)
    for step in (*mine, dist.barrier):
        step(group)
    return group


def _signal_as_it_waits(number: signal.Signals) -> None:
    """To this thread, as soon as it waits for an operation."""
    main = threading.get_ident()

    def send() -> None:
        while not (runs_in_the_library(main) or waits_for_an_operation(main)):
            time.sleep(0.001)
        signal.pthread_kill(main, number)

    threading.Thread(target=send).start()


# ---- a handler that raises ----


def interrupted(here: Here, what: str) -> list[str]:
    """What the group's next operations say on each rank."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
    group = _connected()
    if here.rank == 0:
        _signal_as_it_waits(signal.SIGINT)
        with pytest.raises((KeyboardInterrupt, RuntimeError), match="KeyboardInterrupt" if what == "callback" else ""):
            _WAITS[what][0](group)  # torch makes a RuntimeError of what a callback raises
        here.say("interrupted")
    here.hear("interrupted")
    told = [
        refusal(lambda: dist.all_reduce(torch.ones(3), group=group)),
        refusal(lambda: dist.all_reduce(torch.ones(3), group=group, async_op=True)),
        refusal(lambda: dist.isend(torch.ones(300_000), 1 - here.rank, group=group)),
        refusal(lambda: dist.irecv(torch.ones(3), 1 - here.rank, group=group)),
    ]
    here.meet("both know")  # before rank 0 ends what it has left
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("what", _WAITS)
@_TWO
def test_what_a_handler_raises_in_an_operation_ends_the_group(ranks: Ranks, what: str) -> None:
    """At once: the group's timeout would fail the test. The other rank learns of it, but may succeed in the operation
    to which rank 0 had given its part."""
    ours, theirs = ranks.run(interrupted, what, seconds=60)
    assert all(text.startswith("DistBackendError: ") and _OVER in text for text in ours), ours
    assert all(text.startswith("DistBackendError: ") and "rank 0" in text for text in theirs[1:]), theirs


def interrupted_between(here: Here) -> float:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    work.wait()
    return _sum(dist.group.WORLD)


@_TWO
def test_what_a_handler_raises_between_operations_leaves_the_group_alone(ranks: Ranks) -> None:
    assert ranks.run(interrupted_between, seconds=40) == [6.0] * 2


def interrupted_as_it_makes_a_group(here: Here) -> None:
    """When the first of two rows is published."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with after_each_row(lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        ProcessGroupBaguaNet(dist.HashStore(), here.rank, here.size, _LONG, "made")
    assert not any("made" in thread.name for thread in threading.enumerate())
    _sum(dist.group.WORLD)


@_TWO
def test_a_handler_raises_while_a_group_is_made(ranks: Ranks) -> None:
    ranks.run(interrupted_as_it_makes_a_group, seconds=40)


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
    group = dist.new_group()
    dist.barrier(group)
    if here.rank == 0:
        dist.send(torch.full((8,), 3.0), 1, group=group)
        here.hear("interrupted")
        dist.destroy_process_group(group)
        return ""
    tensor = _receiver(_interrupt)
    work = group.recv([tensor], 0, 0)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    here.say("interrupted")
    told = refusal(lambda: dist.barrier(group))
    assert work.wait()
    assert tensor.tolist() == [3.0] * 8
    dist.destroy_process_group(group)
    return told


@_TWO
def test_a_handler_raises_while_a_message_is_stored(ranks: Ranks) -> None:
    """It ends the group; the next wait still stores what was received."""
    assert _OVER in ranks.run(interrupted_as_it_stores, seconds=40)[1]


# ---- a handler that returns ----


def handled(here: Here, what: str, number: signal.Signals) -> tuple[int, float]:
    """How often the handler ran, and the result."""
    handled: list[None] = []

    def handle(*_: Any) -> None:
        handled.append(None)
        here.say("go on")

    before = signal.signal(number, handle)
    group = _connected()
    if here.rank == 0:
        _signal_as_it_waits(number)
    else:
        here.hear("go on")
    result = _WAITS[what][here.rank](group)
    dist.destroy_process_group(group)
    signal.signal(number, before)
    return len(handled), result


@pytest.mark.parametrize("number", [_ANNOUNCED, _OTHER])
@pytest.mark.parametrize("what", _WAITS)
@_TWO
def test_a_handler_that_returns_changes_nothing(ranks: Ranks, what: str, number: signal.Signals) -> None:
    assert ranks.run(handled, what, number, seconds=60) == [(1, 6.0), (0, 6.0)]


def sums_in_a_handler(here: Here, asynchronous: bool) -> list[float]:
    """On all ranks, while another sum is in progress: rank 1 handles the signal when its own sum is over."""
    totals: list[float] = []

    def handle(*_: Any) -> None:
        here.say("handles")
        totals.append(_sum(group))

    before = signal.signal(_ANNOUNCED, handle)
    group = _connected()
    if here.rank == 0:
        _signal_as_it_waits(_ANNOUNCED)
    else:
        here.hear("handles")
    totals.append((_sum_later if asynchronous else _sum)(group))
    if here.rank == 1:
        signal.raise_signal(_ANNOUNCED)
    dist.destroy_process_group(group)
    signal.signal(_ANNOUNCED, before)
    return totals


@pytest.mark.gate
@pytest.mark.parametrize("asynchronous", [False, True])
@_TWO
def test_handlers_of_all_ranks_call_a_collective(ranks: Ranks, asynchronous: bool) -> None:
    assert ranks.run(sums_in_a_handler, asynchronous, seconds=60) == [[6.0, 6.0]] * 2


def sums_in_another_group(here: Here) -> list[float]:
    """Both ranks handle the signal in the sum, of which rank 1's part comes when rank 0 handles it."""
    totals: list[float] = []
    other = _connected()

    def handle(*_: Any) -> None:
        here.say("handles")
        totals.append(_sum(other))

    before = signal.signal(_ANNOUNCED, handle)
    group = _connected()
    if here.rank == 1:
        here.hear("handles")
        signal.raise_signal(_ANNOUNCED)
    else:
        _signal_as_it_waits(_ANNOUNCED)
    totals.append(_sum(group))
    for each in (group, other):
        dist.destroy_process_group(each)
    signal.signal(_ANNOUNCED, before)
    return totals


@_TWO
def test_handlers_call_a_collective_of_another_group(ranks: Ranks) -> None:
    assert ranks.run(sums_in_another_group, seconds=60) == [[6.0, 6.0]] * 2


def alone_in_a_handler(here: Here) -> list[str]:
    """Rank 1 gets no signal, and its next sum has another size than the handler's."""
    told: list[str] = []

    def handle(*_: Any) -> None:
        here.say("handles")
        told.append(refusal(lambda: dist.barrier(group)))

    before = signal.signal(_ANNOUNCED, handle)
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier(group)
    if here.rank == 0:
        _signal_as_it_waits(_ANNOUNCED)
    else:
        here.hear("handles")
    told.append(refusal(lambda: _sum(group)))
    if here.rank == 1:
        here.hear("is over")
    else:
        here.say("is over")
    dist.destroy_process_group(group)
    signal.signal(_ANNOUNCED, before)
    return told


@_TWO
def test_a_handler_s_collective_that_others_do_not_call_ends_in_the_timeout(ranks: Ranks) -> None:
    ours, theirs = ranks.run(alone_in_a_handler, seconds=60)
    assert "2 s" in ours[0], ours
    assert theirs == ["accepted"]


def refused_in_a_handler(here: Here) -> str:
    """The interrupted sum goes on after the handler, which must not wait for its end."""
    told: list[str] = []

    def handle(*_: Any) -> None:
        told.append(refusal(lambda: _sum(group)))
        here.say("go on")

    before = signal.signal(_OTHER, handle)
    group = _connected()
    if here.rank == 0:
        _signal_as_it_waits(_OTHER)
    else:
        here.hear("go on")
    assert _sum(group) == 6.0
    dist.destroy_process_group(group)
    signal.signal(_OTHER, before)
    return "".join(told)


@_TWO
def test_the_handler_of_another_signal_cannot_start_a_collective_within_a_synchronous_one(ranks: Ranks) -> None:
    assert "call that one with async_op=True" in ranks.run(refused_in_a_handler, seconds=60)[0]


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
