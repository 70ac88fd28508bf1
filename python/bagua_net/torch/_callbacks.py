# SPDX-License-Identifier: MIT
"""Where what users chain to futures runs: it may ask for the group's next operation, and wait for it, so it must not
run on a thread that the next operation needs. PowerSGD's hook does just that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class Callbacks:
    """Runs tasks at once, whatever the others wait for: as many threads as there are tasks at a time."""

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
        """One more thread. False: the system has none to give."""
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
        """Returns when all tasks are over; later ones run on their caller's thread. More than once is fine.

        Of a task it returns at once: another one may be closing these, too, and would wait for this one.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join()
