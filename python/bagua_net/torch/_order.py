# SPDX-License-Identifier: MIT
"""The order of a group's collectives: all ranks must run them in the same one, so each runs them in the order in which
they were asked for.

Whoever asks and waits runs the operation itself, if nothing is before it: that saves two changes of threads. All else
is run by one thread of the group, started with the first such operation, that holds no GIL while data moves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ._work import Work

Task = Callable[[], None]


class Order:
    """One operation at a time, first come, first served."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[tuple[Task, Work]] = deque()
        self._running = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def run(self, task: Task, work: Work, *, now: bool) -> Work:
        """Has the task run in its turn, and finishes ``work`` with what it raises.

        Args:
            now: the caller waits for it, so it may as well run on its thread.

        Raises:
            RuntimeError: the group was shut down.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name} was shut down; make a new group")
            if now and not self._queue and not self._running:
                self._running = True
            else:
                now = False
                self._queue.append((task, work))
                self._start()
                self._changed.notify_all()
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
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while self._running or not self._queue:
                    if self._closed and not self._queue:
                        return
                    self._changed.wait()
                task, work = self._queue.popleft()
                self._running = True
            _do(task, work)
            self._ended()
            del task, work  # they hold tensors

    def close(self) -> None:
        """Returns when all that was asked for is over; nothing more is taken. More than once is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._running or self._queue:
                self._changed.wait()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _do(task: Task, work: Work) -> None:
    try:
        task()
    except BaseException as error:  # whoever waits gets it, whatever it is
        work.finish(error)
    else:
        work.finish()
