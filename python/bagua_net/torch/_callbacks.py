# SPDX-License-Identifier: MIT
"""The threads that run callbacks of futures. A callback may start the group's next operation and wait for it, as
PowerSGD's hook does, or for the callback of another future: so one that waits must not stop the others for good.

There is no lock. A signal handler that ends the group waits for these threads and for others that queue tasks, and none
of them may wait for the call that it has interrupted. Each step is one operation on a queue, a list or a set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Task = Callable[[], None]
_T = TypeVar("_T")

#: Tasks that run at a time …
_FEW = 4
#: … unless none ends in so many seconds: they may wait for one that is queued.
_STUCK_S = 0.1
#: Seconds after which an idle thread ends.
_IDLE_S = 5.0


class Callbacks:
    """Runs tasks in the order of their arrival, a few at a time, and more only while none of them ends.

    One thread leads: it takes the next task, waits until that may begin, leaves the lead to another one and runs it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()  # None: closed
        self._lead = _filled(1)  # empty while a thread leads
        self._start = _filled(1)  # empty while a thread starts
        self._turns = _filled(_FEW)  # a task takes one before it begins
        self._followers: list[None] = []  # as many as wait for the lead
        self._threads: set[threading.Thread] = set()

    # ---- callers ----

    def run(self, task: Task) -> None:
        """Queues it, or runs it here where no thread can start or the group has ended."""
        if self._closed:
            task()
            return
        try:
            self._tasks.put(task)
        finally:
            self._see_to_it()

    def _see_to_it(self) -> None:
        """That what is queued will be taken."""
        if self._closed:  # meanwhile: all threads may have ended before
            self._run_here()
        elif not self._followers and not self._lead.empty():
            self._add_thread()

    def _add_thread(self) -> None:
        """Unless one starts already. Where the system refuses it and there is no other, the tasks run here."""
        inside = threading.current_thread() in self._threads
        thread = threading.Thread(target=self._serve, args=(inside,), name=self._name, daemon=True)
        try:
            if _taken(self._start):
                self._threads.add(thread)
                thread.start()
        except BaseException as error:
            self._start.put(None)  # a second one, where the thread has started nevertheless, does no harm
            if not isinstance(error, RuntimeError):
                raise
            self._threads.discard(thread)
            if not self._alive():
                self._run_here()

    def _run_here(self) -> None:
        """All that is queued."""
        while taken := _taken(self._tasks):
            if taken[0] is not None:
                taken[0]()
        if self._closed:
            self._tasks.put(None)

    def close(self) -> None:
        """Returns when all tasks have ended; later ones run on their caller's thread. Repeated calls do nothing.

        Called by a task it returns at once: another task may be closing as well, and each would wait for the other.
        """
        self._closed = True
        self._tasks.put(None)
        if threading.current_thread() in self._threads:
            return
        while threads := self._alive():  # those that run now may yet start another
            for thread in threads:
                thread.join()
        self._run_here()

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in list(self._threads) if thread.is_alive()]

    # ---- threads ----

    def _serve(self, inside: bool) -> None:
        """``inside``: started by another one, which is alive until this one is; close() waits for both.

        It does not wait for a thread that a caller has not quite started, and that one must not take a task.
        """
        if inside or not self._closed:
            self._followers.append(None)
            self._start.put(None)
            while (task := self._take()) is not None:
                has_turn = _taken(self._turns, _STUCK_S)
                self._lead.put(None)
                if not self._tasks.empty() and not self._followers:
                    self._add_thread()
                task()
                del task  # it holds tensors
                self._followers.append(None)
                if has_turn:
                    self._turns.put(None)
        self._threads.discard(threading.current_thread())

    def _take(self) -> Task | None:
        """The next task, and the lead with it. None: this thread ends."""
        leads = _taken(self._lead, _IDLE_S)
        self._followers.pop()
        while leads or (not self._tasks.empty() and _taken(self._lead)):
            if taken := _taken(self._tasks, _IDLE_S):
                if taken[0] is None:
                    self._tasks.put(None)
                    self._lead.put(None)
                return taken[0]
            self._lead.put(None)
            leads = []
        return None

    def leave_to_parent(self) -> None:
        """In a child of fork(), which has none of the threads: later tasks run on their caller's thread."""
        self._begin()
        self._closed = True


def _filled(items: int) -> SimpleQueue[None]:
    queue: SimpleQueue[None] = SimpleQueue()
    for _ in range(items):
        queue.put(None)
    return queue


def _taken(queue: SimpleQueue[_T], seconds: float = 0.0) -> list[_T]:
    """Its first item, if there is one within so many seconds."""
    try:
        return [queue.get(timeout=seconds)]
    except Empty:
        return []
