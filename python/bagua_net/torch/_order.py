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
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # of the operation that runs
        self._pending = 0  # asked for, and not over
        self._closed = False
        self._queue: SimpleQueue[tuple[Task, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, task: Task, work: Work, *, now: bool) -> Work:
        """Has the task run in its turn, and finishes ``work`` with what it raises.

        Args:
            now: the caller waits for it, so it may as well run on its thread.

        Raises:
            RuntimeError: the group was shut down.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} was shut down; make a new group")
            now = now and self._pending == 0
            self._pending += 1
            if now:
                self._turn.acquire()  # at once: nothing runs
            else:
                self._start()
                self._queue.put((task, work))
        if now:
            try:
                _do(task, work)
            finally:
                self._ended()
        return work

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    def _ended(self) -> None:
        self._turn.release()
        with self._lock:
            self._pending -= 1

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not None:
            self._turn.acquire()
            _do(*asked)
            self._ended()
            del asked  # it holds tensors

    def close(self) -> None:
        """Returns when all that was asked for is over; nothing more is taken. More than once is fine."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._turn:
            pass


def _do(task: Task, work: Work) -> None:
    try:
        task()
    except BaseException as error:  # whoever waits gets it, whatever it is
        work.finish(error)
    else:
        work.finish()
