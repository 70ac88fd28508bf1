# SPDX-License-Identifier: MIT
"""The threads that run callbacks of futures: how many there are, which tasks they take, and when they end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from bagua_net.torch import _callbacks

Callbacks = _callbacks.Callbacks
_FEW = _callbacks._FEW
_NAME = "callbacks of a test"
#: Until a test gives up on a thread.
_SECONDS = 30
#: Longer than any test.
_NEVER_S = 3600.0


@pytest.fixture
def callbacks() -> Iterator[Callbacks]:
    made = Callbacks(_NAME)
    yield made
    made.close()


@dataclass
class Tasks:
    """Tasks that say that they have begun, and then wait until they may end."""

    begun: queue.Queue[int] = field(default_factory=queue.Queue)
    ended: list[int] = field(default_factory=list)
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _now: int = 0
    _may_end: dict[int, threading.Event] = field(default_factory=dict)

    def task(self, number: int) -> Callable[[], None]:
        may_end = self._may_end.setdefault(number, threading.Event())

        def task() -> None:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            self.begun.put(number)
            assert may_end.wait(_SECONDS)
            with self._lock:
                self._now -= 1
            self.ended.append(number)

        return task

    def next_begun(self) -> int:
        return self.begun.get(timeout=_SECONDS)

    def end(self, number: int) -> None:
        self._may_end[number].set()


def _wait_for_the_end(call: Callable[[], object]) -> None:
    """Of a call that may hang: on a thread of its own."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert not thread.is_alive()


def _alive() -> int:
    """How many threads it has."""
    return sum(thread.name == _NAME for thread in threading.enumerate())


def test_few_tasks_run_at_a_time_while_some_of_them_end(callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their arrival. One more thread waits for its turn."""
    monkeypatch.setattr(_callbacks, "_STUCK_S", _NEVER_S)
    tasks, count = Tasks(), 5 * _FEW
    for number in range(count):
        callbacks.run(tasks.task(number))
    began = {tasks.next_begun() for _ in range(_FEW)}
    assert began == set(range(_FEW))
    for number in range(_FEW, count):
        tasks.end(number - _FEW)
        assert tasks.next_begun() == number
        assert _alive() <= _FEW + 1
    for number in range(count - _FEW, count):
        tasks.end(number)
    callbacks.close()
    assert tasks.most == _FEW
    assert sorted(tasks.ended) == list(range(count))


@pytest.mark.gate
@pytest.mark.parametrize("waiting", [_FEW, 3 * _FEW])
def test_tasks_that_wait_for_a_later_one(callbacks: Callbacks, waiting: int) -> None:
    last_began, served = threading.Event(), []

    def wait() -> None:
        served.append(last_began.wait(_SECONDS))

    for _ in range(waiting):
        callbacks.run(wait)
    callbacks.run(last_began.set)
    assert last_began.wait(_SECONDS)
    callbacks.close()
    assert served == [True] * waiting


def test_close_waits_for_a_task_that_begins_meanwhile(callbacks: Callbacks) -> None:
    """Its thread starts only when the tasks before it are stuck, long after the call."""
    last_began, closed, closed_before_its_end = threading.Event(), threading.Event(), []

    def wait() -> None:
        assert last_began.wait(_SECONDS)

    def outlive() -> None:
        last_began.set()
        closed_before_its_end.append(closed.wait(0.5))  # for nothing, unless close() returns too early

    for _ in range(_FEW + 1):
        callbacks.run(wait)
    callbacks.run(outlive)
    callbacks.close()
    closed.set()
    assert closed_before_its_end == [False]


def _thread_of_a_task(callbacks: Callbacks) -> threading.Thread:
    """The thread that runs a task, once it has begun."""
    threads: queue.Queue[threading.Thread] = queue.Queue()
    callbacks.run(lambda: threads.put(threading.current_thread()))
    return threads.get(timeout=_SECONDS)


def test_idle_threads_end_and_others_follow(callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_callbacks, "_IDLE_S", 0.01)
    for _ in range(3):
        thread = _thread_of_a_task(callbacks)
        assert thread is not threading.current_thread()
        thread.join(_SECONDS)
        assert not thread.is_alive()


def test_a_thread_that_is_not_idle_serves_the_next_task(callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few threads may still be on their way back from their tasks."""
    monkeypatch.setattr(_callbacks, "_IDLE_S", _NEVER_S)
    monkeypatch.setattr(_callbacks, "_STUCK_S", _NEVER_S)
    assert len({_thread_of_a_task(callbacks) for _ in range(50)}) <= _FEW + 1


def test_tasks_that_close_it_return(callbacks: Callbacks) -> None:
    """Two at once, each of which the other's call would have to wait for. Later tasks run on their caller's thread."""
    met, closed = threading.Barrier(2, timeout=_SECONDS), []

    def close() -> None:
        met.wait()
        callbacks.close()
        closed.append(threading.current_thread())

    for _ in range(2):
        callbacks.run(close)
    _wait_for_the_end(callbacks.close)
    assert len(set(closed)) == 2
    assert _thread_of_a_task(callbacks) is threading.current_thread()
