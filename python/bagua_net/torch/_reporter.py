# SPDX-License-Identifier: MIT
"""The thread that fulfils futures: the library ends operations without Python, and a future has to be told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

#: More than any number of operations: the library's answer does not wait for the next end.
_NOW = 2**64 - 1
#: Seconds between two attempts while another thread stores what was received.
_PAUSE_S = 0.001


class Reported(Protocol):
    def report(self) -> bool | None:
        """Fulfils the future if the operation is over. False: it is not. None: another thread is at work on it, for
        which this one never waits: that may be the main one, in a signal handler that waits for a future."""


class Reporter:
    """Starts with the first future that is asked for before its operation is over, and ends when no more will end."""

    def __init__(self, name: str, ended: Callable[[int], int]) -> None:
        """``ended(seen)`` waits until another number of operations than ``seen`` is over, or none will be any more."""
        self._name = name
        self._ended = ended
        self._starting = threading.RLock()
        self._waiting: dict[int, Reported] = {}  # each step is one operation on it
        self._thread: threading.Thread | None = None
        #: From here on, the thread that ends an operation fulfils its future itself: see :meth:`Reported.report`.
        self.closing = False

    def add(self, work: Reported) -> None:
        """Reports it when it is over, on another thread. Raises RuntimeError where no thread can start.

        The operation may have ended before this thread knew of it: the caller looks once more.
        """
        if not self._is_alive():
            self._start()
        self._waiting[id(work)] = work

    def remove(self, work: Reported) -> None:
        self._waiting.pop(id(work), None)

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._starting:
            if not self._is_alive():
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        last = False
        while True:
            seen = self._ended(_NOW)
            while self._report_all() and not self.closing:
                time.sleep(_PAUSE_S)
            if last:
                return
            last = self._ended(seen) == seen

    def _report_all(self) -> bool:
        """Those that are over. True: another thread is at work on one."""
        busy = False
        for work in list(self._waiting.values()):
            told = work.report()
            if told:
                self.remove(work)
            busy = busy or told is None
            del work  # it holds tensors
        return busy

    def close(self) -> None:
        """Once all operations are over, and none follows: returns when all are reported. Repeated calls do nothing.

        Called by a callback on this very thread it returns at once. Without this call the thread ends as well.
        """
        self.closing = True
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def leave_to_parent(self) -> None:
        """In a child of fork(), which does not have the thread."""
        self._starting = threading.RLock()
        self._waiting = {}
        self._thread = None
