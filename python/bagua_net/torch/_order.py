# SPDX-License-Identifier: MIT
"""The order of a group's collectives: all ranks must run them in the same one, so each runs them in the order in which
they were asked for.

Whoever asks and waits runs the operation itself, if nothing is before it: that saves two changes of threads. All else
is run by one thread of the group, started with the first such operation, that holds no GIL while data moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from ._work import Work

Task = Callable[[], None]


class Order:
    """One operation at a time, first come, first served."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # a signal's handler may close it in the middle of anything
        self._turn = threading.Lock()  # of the operation that runs
        self._runner: int | None = None  # the thread whose turn it is
        self._pending = 0  # asked for, and not over
        self._refusal = ""  # or why no more is taken
        self._queue: SimpleQueue[tuple[Task, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, task: Task, work: Work, *, now: bool) -> Work:
        """Has the task run in its turn, and finishes ``work`` with what it raises.

        Args:
            now: the caller waits for it, so it may as well run on its thread.

        Raises:
            RuntimeError: the group was shut down, or is of the process that forked this one; or no thread can start.
        """
        with self._lock:
            if self._refusal:
                raise RuntimeError(self._refusal)
            now = now and self._pending == 0
            if not now:
                self._start()
                self._queue.put((task, work))
            self._pending += 1
            if now:
                self._take_turn()  # at once: nothing runs
        if now:
            try:
                _do(task, work)
            finally:
                self._ended()
        return work

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _take_turn(self) -> None:
        self._turn.acquire()
        self._runner = threading.get_ident()

    def _ended(self) -> None:
        self._runner = None
        self._turn.release()
        with self._lock:
            self._pending -= 1

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not None:
            self._take_turn()
            _do(*asked)
            self._ended()
            del asked  # it holds tensors

    def close(self) -> None:
        """Returns when all that was asked for is over; nothing more is taken. More than once is fine.

        All but what the calling thread is in the middle of: a signal's handler may be what calls this.
        """
        with self._lock:
            self._refusal = f"{self._name} was shut down; make a new group"
            self._queue.put(None)
        if self._runner == threading.get_ident():
            return
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            pass

    def leave_to_parent(self, refusal: str) -> None:
        """In a child of fork(), which has not got the thread: nothing is waited for any more."""
        self._lock = threading.RLock()
        self._refusal = refusal


def _do(task: Task, work: Work) -> None:
    try:
        task()
    except BaseException as error:  # whoever waits gets it, whatever it is
        work.finish(error)
    else:
        work.finish()
