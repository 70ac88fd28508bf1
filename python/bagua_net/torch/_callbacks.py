# SPDX-License-Identifier: MIT
"""The threads that run callbacks of futures. A callback may start the group's next operation and wait for it, as
PowerSGD's hook does, so it must not run on a thread that the next operation needs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class Callbacks:
    """Runs each task at once, even while others wait: there are as many threads as simultaneous tasks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Task] = deque()
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def run(self, task: Task) -> None:
        with self._changed:
            if not self._closed and (len(self._queue) < self._idle or self._start()):
                self._queue.append(task)
                self._changed.notify()
                return
        task()

    def _start(self) -> bool:
        """Starts one more thread. False: the system refuses."""
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads.append(thread)
        return True

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._queue and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._queue:
                    return
                task = self._queue.popleft()
            task()
            del task  # it holds tensors

    def close(self) -> None:
        """Returns when all tasks have ended; later ones run on their caller's thread. Repeated calls do nothing.

        Called by a task it returns at once: another task may be closing as well, and each would wait for the other.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join()
