# SPDX-License-Identifier: MIT
"""The threads that run callbacks of futures. A callback may start the group's next operation and wait for it, as
PowerSGD's hook does, or for the callback of another future: so one that waits must not stop the others for good.

A signal handler may interrupt the main thread anywhere and wait for a callback. So the main thread takes none of the
locks here: tasks come from the threads that report ends, and end on the threads of this module.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Task = Callable[[], None]

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
        self._begin()

    def _begin(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()  # None: closed
        self._lead = threading.Lock()
        self._few = threading.Semaphore(_FEW)
        self._counting = threading.Lock()
        self._idle = 0  # threads that have the lead, or wait for it
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def run(self, task: Task) -> None:
        """Queues it, or runs it here where no thread can start or the group has ended. Not on the main thread."""
        self._tasks.put(task)
        if self._closed or not self._has_thread():
            self._run_here()

    def _has_thread(self) -> bool:
        """That takes what is queued; starts it where none is idle. False: none can start, and there is no other."""
        with self._counting:
            self._threads = set(self._alive())
            if self._idle == 0:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError:
                    self._threads.discard(thread)
                    return bool(self._threads)
                self._idle = 1
            return True

    def _run_here(self) -> None:
        """All that is queued."""
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task()
        if self._closed:
            self._tasks.put(None)

    def close(self, wait: bool = True) -> bool:
        """Returns True when all tasks have ended, unless it shall not ``wait`` for them; later ones run on their
        caller's thread. Repeated calls do nothing.

        Called by a task it returns at once: another task may be closing as well, and each would wait for the other.
        """
        self._closed = True
        self._tasks.put(None)
        if not wait or threading.current_thread() in self._threads:
            return False
        while threads := self._alive():  # those that run now may yet start another
            for thread in threads:
                thread.join()
        self._run_here()
        return True

    @property
    def is_over(self) -> bool:
        """No thread of it runs."""
        return not self._alive()

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in list(self._threads) if thread.is_alive()]

    # ---- threads ----

    def _serve(self) -> None:
        while True:
            taken = None
            if self._lead.acquire(timeout=_IDLE_S):
                taken = self._take()
                self._lead.release()
            if taken is not None:
                self._perform(*taken)
            elif self._may_end():
                return

    def _take(self) -> tuple[Task, bool] | None:
        """The next task, and whether it has one of the few slots; None where there is no task, or no more."""
        try:
            task = self._tasks.get(timeout=_IDLE_S)
        except Empty:
            return None
        if task is None:
            self._tasks.put(None)
            return None
        return task, self._few.acquire(timeout=_STUCK_S)

    def _perform(self, task: Task, is_of_few: bool) -> None:
        with self._counting:
            self._idle -= 1
        if not self._tasks.empty():
            self._has_thread()
        task()
        if is_of_few:
            self._few.release()
        with self._counting:
            self._idle += 1

    def _may_end(self) -> bool:
        """This thread; not where nobody else takes what was queued meanwhile."""
        with self._counting:
            if not self._closed and self._idle == 1 and not self._tasks.empty():
                return False
            self._idle -= 1
            return True

    def leave_to_parent(self) -> None:
        """In a child of fork(), which has none of the threads: later tasks run on their caller's thread."""
        self._begin()
        self._closed = True
