# SPDX-License-Identifier: MIT
"""The thread that fulfils futures: the library ends operations without Python, and a future has to be told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

#: More than any number of operations: the library's answer does not wait for the next end.
_NOW = 2**64 - 1


class Reported(Protocol):
    def report(self) -> bool:
        """Fulfils the future if the operation is over. False: it is not. It never waits for another thread."""


class Reporter:
    """Starts with the first future that is asked for before its operation is over, and ends when no more will end.

    A signal handler may interrupt any method and end the group, so that the thread needs no lock that they hold.
    """

    def __init__(self, name: str, ended: Callable[[int], int]) -> None:
        """``ended(seen)`` waits until another number of operations than ``seen`` is over, or none will be any more."""
        self._name = name
        self._ended = ended
        self._starting = threading.RLock()
        self._waiting: dict[int, Reported] = {}  # each step is one operation on it
        self._thread: threading.Thread | None = None

    def add(self, work: Reported) -> None:
        """Reports it when it is over, on another thread. Raises RuntimeError where no thread can start.

        The caller then calls its ``report``: the operation may have ended before this thread knew of it.
        """
        if self._thread is None:
            self._start()
        self._waiting[id(work)] = work

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        last = False
        while True:
            seen = self._ended(_NOW)
            for work in list(self._waiting.values()):
                if work.report():
                    self._waiting.pop(id(work), None)
                del work  # it holds tensors
            if last:
                return
            last = self._ended(seen) == seen

    def close(self) -> None:
        """Once all operations are over, and none follows: returns when all are reported. Repeated calls do nothing.

        Called by a callback on this very thread it returns at once. Without this call the thread ends as well.
        """
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def leave_to_parent(self) -> None:
        """In a child of fork(), which does not have the thread."""
        self._starting = threading.RLock()
        self._waiting = {}
        self._thread = None
