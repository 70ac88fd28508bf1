# SPDX-License-Identifier: MIT
"""An object of the library that several threads use and any of them may end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .._native import library


class Handle:
    """Lends a C object to callers and destroys it once it is closed and nobody uses it.

    >>> with handle as pointer:       # doctest: +SKIP
    ...     lib.bnet_queue_post(pointer, …)

    A signal handler may close the object in the middle of a use on its own thread: the use goes on, and destroys it.

    Each message is a use, so a use takes no lock. A user is counted before it looks at what :meth:`refuse` and
    :meth:`_end` set, and those look at the count afterwards: one of the two sees the other.
    """

    def __init__(self, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self._pointer = pointer
        self._address = library.address(pointer)
        self._destroy = destroy
        self._ending = threading.RLock()
        self._users: list[None] = []  # as many as there are: a list counts atomically
        self._refusal = ""  # why it may not be used any more; "": it may
        self._closed = False

    def __enter__(self) -> Any:
        """Raises RuntimeError with the reason where it may not be used any more."""
        self._users.append(None)
        if self._refusal:
            self.__exit__()
            raise RuntimeError(self._refusal)
        return self._pointer

    def __exit__(self, *_: object) -> None:
        self._users.pop()
        if self._closed:
            self._end()

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """``function(address, *arguments)``, in one step: for the functions of :func:`library.quick`."""
        users = self._users
        users.append(None)
        try:
            if self._refusal:
                raise RuntimeError(self._refusal)
            return function(self._address, *arguments)
        finally:
            users.pop()
            if self._closed:
                self._end()

    @contextmanager
    def held(self) -> Iterator[Any]:
        """The same for who ends it: also where it is refused to others. None once it is destroyed."""
        self._users.append(None)
        try:
            yield self._pointer
        finally:
            self.__exit__()

    def check(self) -> None:
        """Raises RuntimeError with the reason where it may not be used any more."""
        if self._refusal:
            raise RuntimeError(self._refusal)

    def refuse(self, reason: str) -> None:
        """From now on uses raise RuntimeError. The first reason stays."""
        self._refusal = self._refusal or reason

    def close(self) -> None:
        """Destroys it, now or after the last use. Call :meth:`refuse` before. Repeated calls do nothing."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Destroys it unless somebody uses it, who does so later."""
        with self._ending:
            pointer, self._pointer = self._pointer, None
            if self._users:
                self._pointer, pointer = pointer, None
        if pointer is not None:
            self._destroy(pointer)

    def leave_to_parent(self, reason: str) -> None:
        """In a child of fork(): its object is the parent's, and another thread may have held the lock."""
        self._ending = threading.RLock()
        self._refusal = reason
        self._pointer = None
