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
        """Fulfils the future if the operation is over. False: it is not."""


class Reporter:
    """Starts with the first future that is asked for before its operation is over."""

    def __init__(self, name: str, ended: Callable[[int], int]) -> None:
        """``ended(seen)`` waits until another number of operations than ``seen`` is over, or none will be any more."""
        self._name = name
        self._ended = ended
        self._lock = threading.Lock()
        self._waiting: list[Reported] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, work: Reported) -> None:
        """Reports it when it is over, on another thread. Raises RuntimeError where no thread can start."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.append(work)

    def _serve(self) -> None:
        while True:
            seen = self._ended(_NOW)
            with self._lock:
                waiting, closed = list(self._waiting), self._closed
            over = {id(work) for work in waiting if work.report()}
            with self._lock:
                self._waiting = [work for work in self._waiting if id(work) not in over]
            del waiting  # they hold tensors
            if closed:
                return
            self._ended(seen)

    def close(self) -> None:
        """Once all operations are over, and none follows: returns when all are reported. Repeated calls do nothing.

        Called by a callback on this very thread it returns at once.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def leave_to_parent(self) -> None:
        """In a child of fork(), which does not have the thread."""
        self._lock = threading.Lock()
        self._thread = None
