# SPDX-License-Identifier: MIT
"""An object of the library that several threads use and any of them may end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Handle:
    """Lends a C object to callers and destroys it once it is closed and nobody uses it.

    >>> with handle as pointer:       # doctest: +SKIP
    ...     lib.bnet_queue_post(pointer, …)

    A signal handler may close the object in the middle of a use on its own thread: the use goes on, and destroys it.
    """

    def __init__(self, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self._pointer = pointer
        self._destroy = destroy
        self._lock = threading.RLock()
        self._users = 0
        self._refusal = ""  # why it may not be used any more; "": it may
        self._closed = False

    def __enter__(self) -> Any:
        """Raises RuntimeError with the reason where it may not be used any more."""
        with self._lock:
            if self._refusal:
                raise RuntimeError(self._refusal)
            self._users += 1
            return self._pointer

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and self._users == 0
        if last:
            self._end()

    @contextmanager
    def held(self) -> Iterator[Any]:
        """The same for who ends it: also where it is refused to others. None once it is destroyed."""
        with self._lock:
            pointer = self._pointer
            self._users += pointer is not None
        try:
            yield pointer
        finally:
            if pointer is not None:
                self.__exit__()

    def refuse(self, reason: str) -> None:
        """From now on uses raise RuntimeError. The first reason stays."""
        with self._lock:
            self._refusal = self._refusal or reason

    def close(self) -> None:
        """Destroys it, now or after the last use. Call :meth:`refuse` before. Repeated calls do nothing."""
        with self._lock:
            self._closed = True
            last = self._users == 0
        if last:
            self._end()

    def _end(self) -> None:
        with self._lock:
            pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._destroy(pointer)

    def leave_to_parent(self, reason: str) -> None:
        """In a child of fork(): its object is the parent's, and another thread may have held the lock."""
        self._lock = threading.RLock()
        self._refusal = reason
        self._pointer = None
