# SPDX-License-Identifier: MIT
"""The order of a group's collectives. All ranks must run them in the same order, so each runs them in the order of the
calls.

A caller that waits runs the operation itself if none is pending, which saves two thread switches. All others run on one
thread of the group, which starts with the first of them and does not hold the GIL while data moves.
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
        self._lock = threading.RLock()  # a signal handler may close it at any point
        self._turn = threading.Lock()  # held by the running operation
        self._runner: int | None = None  # the thread that runs it
        self._pending = 0  # operations that have not ended
        self._refusal = ""  # why no more operations are accepted; "": they are
        self._queue: SimpleQueue[tuple[Task, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, task: Task, work: Work, *, now: bool) -> Work:
        """Runs the task in its turn and finishes ``work``, with the exception if the task raises one.

        Args:
            now: the caller waits for it, so the task may run on the caller's thread.

        Raises:
            RuntimeError: the group was shut down or belongs to the parent process, or no thread can start.
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
                self._take_turn()  # does not wait: no operation runs
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
        """Returns when all operations have ended; accepts no more. Repeated calls do nothing.

        It does not wait for an operation of the calling thread itself: a signal handler may have interrupted that.
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
        """In a child of fork(), which does not have the thread: later calls are refused and nothing is waited for."""
        self._lock = threading.RLock()
        self._refusal = refusal


def _do(task: Task, work: Work) -> None:
    try:
        task()
    except BaseException as error:  # of any kind: the waiting thread gets it
        work.finish(error)
    else:
        work.finish()
