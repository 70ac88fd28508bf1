# SPDX-License-Identifier: MIT
"""The threads that run callbacks of futures. A callback may start the group's next operation and wait for it, as
PowerSGD's hook does, or for the callback of another future: so one that waits must not stop the others for good.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]

#: Tasks that run at a time …
_FEW = 4
#: … unless none has begun or ended for so many seconds: they may wait for one that is queued.
_STUCK_S = 0.1
#: Seconds after which an idle thread ends.
_IDLE_S = 5.0


class Callbacks:
    """Runs tasks in the order of their arrival, a few at a time, and more only while none of them ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Task] = deque()
        self._running = 0
        self._moved = 0.0  # when a task last began or ended
        self._closed = False
        self._threads: set[threading.Thread] = set()

    def run(self, task: Task) -> None:
        """Queues it, or runs it here where no thread can start or the group has ended."""
        with self._changed:
            if not self._closed:
                self._queue.append(task)
                if self._spare() or self._start():
                    self._changed.notify()
                    return
                self._queue.pop()
        task()

    def _spare(self) -> bool:
        """Is there a thread that can take a task, now or when the others are stuck?"""
        return len(self._threads) > self._running

    def _start(self) -> bool:
        """Starts one more thread. False: the system refuses."""
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return bool(self._threads)
        self._threads.add(thread)
        return True

    def _serve(self) -> None:
        while (task := self._take()) is not None:
            task()
            del task  # it holds tensors
            with self._changed:
                self._running -= 1
                self._moved = time.monotonic()
                self._changed.notify()

    def _take(self) -> Task | None:
        """The next task; None: this thread ends."""
        idle_since = time.monotonic()
        with self._changed:
            while not (self._queue and (left := self._stuck_in()) <= 0):
                now = time.monotonic()
                if not self._queue and (self._closed or now - idle_since >= _IDLE_S):
                    self._threads.discard(threading.current_thread())
                    return None
                self._changed.wait(left if self._queue else _IDLE_S)
            self._running += 1
            self._moved = time.monotonic()
            task = self._queue.popleft()
            if self._queue and not self._spare():
                self._start()
            return task

    def _stuck_in(self) -> float:
        """Seconds until one more task may begin."""
        if self._running < _FEW:
            return 0.0
        return self._moved + _STUCK_S - time.monotonic()

    def close(self) -> None:
        """Returns when all tasks have ended; later ones run on their caller's thread. Repeated calls do nothing.

        Called by a task it returns at once: another task may be closing as well, and each would wait for the other.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while threads := self._others():  # those that run now may yet start another
            for thread in threads:
                thread.join()

    def _others(self) -> list[threading.Thread]:
        """Its threads. None for a caller that is one of them."""
        with self._changed:
            if threading.current_thread() in self._threads:
                return []
            return [thread for thread in self._threads if thread.is_alive()]

    def leave_to_parent(self) -> None:
        """In a child of fork(), which has none of the threads: later tasks run on their caller's thread."""
        self._changed = threading.Condition()
        self._queue = deque()
        self._threads = set()
        self._running = 0
        self._closed = True
