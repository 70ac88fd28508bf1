# SPDX-License-Identifier: MIT
"""An object of the library that several threads use and any of them may end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .._native import library

_T = TypeVar("_T")


class Handle:
    """Lends a C object to functions and destroys it once it is closed and nobody uses it.

    >>> handle.use(lib.bnet_queue_drain, 1.0)       # doctest: +SKIP

    A signal handler may close the object in the middle of a use on its own thread: the use goes on, and destroys it.
    One that raises, at any point, ends the use. So a use is no ``with`` block, whose end a handler can prevent, and
    each user has a name of its own, which is taken back whether it was noted or not.

    Each message is a use, so a use takes no lock. A user is counted before it looks at what :meth:`refuse` and
    :meth:`_end` set, and those look at the users afterwards: one of the two sees the other.
    """

    def __init__(self, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self._pointer = pointer
        self._address = library.address(pointer)
        self._destroy = destroy
        self._ending = threading.RLock()
        self._users: set[object] = set()  # each step is one operation on it
        self._refusal = ""  # why it may not be used any more; "": it may
        self._closed = False
        self._destroyed = False  # or about to be: nobody waits for the lock any more

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """``function(address, *arguments)``: for the functions of :func:`library.quick`.

        Raises RuntimeError with the reason where the object may not be used any more.
        """
        users, user = self._users, object()
        try:
            users.add(user)
            if self._refusal:
                raise RuntimeError(self._refusal)
            return function(self._address, *arguments)
        finally:
            users.discard(user)
            if self._closed:
                self._end()

    def use(self, function: Callable[..., _T], *arguments: Any) -> _T | None:
        """``function(pointer, *arguments)``, also where :meth:`call` is refused. None once the object is destroyed."""
        users, user = self._users, object()
        try:
            users.add(user)
            pointer = self._pointer
            return None if pointer is None else function(pointer, *arguments)
        finally:
            users.discard(user)
            if self._closed:
                self._end()

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
        if self._destroyed:  # a handler may come at the end of the destruction, and wait for a thread that is here
            return
        with self._ending:
            pointer, self._pointer = self._pointer, None
            if self._users:
                self._pointer = pointer
            elif pointer is not None:  # nothing is called in between, so that no signal handler can raise there
                self._destroyed = True
                self._destroy(pointer)

    def leave_to_parent(self, reason: str) -> None:
        """In a child of fork(): its object is the parent's, and another thread may have held the lock."""
        self._ending = threading.RLock()
        self._refusal = reason
        self._pointer = None
