# SPDX-License-Identifier: MIT
"""An object of the library that several threads use and any of them may end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .._native import library

_T = TypeVar("_T")


class _Object:
    """Destroyed with the last reference to it."""

    def __init__(self, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self.pointer = pointer
        self.address = library.address(pointer)
        self._destroy = destroy

    def leave_to_parent(self) -> None:
        self.pointer = None

    def __del__(self) -> None:
        if self.pointer is not None:
            self._destroy(self.pointer)


class Handle:
    """Lends a C object to functions and destroys it once it is closed and nobody uses it.

    >>> handle.use(lib.bnet_queue_drain, 1.0)       # doctest: +SKIP

    Python counts the users: each refers to the object while it uses it. There is no lock, since a signal handler may
    interrupt any use, on the same thread, and close the object: that use goes on, and destroys it at its end.
    """

    def __init__(self, pointer: Any, destroy: Callable[[Any], None]) -> None:
        self._object: _Object | None = _Object(pointer, destroy)  # None: closed
        self._refusal: Exception | None = None  # why it may not be used any more; None: it may

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """``function(address, *arguments)``: for the functions of :func:`library.quick`.

        Raises the reason where the object may not be used any more.
        """
        used = self._object
        try:
            if self._refusal is not None or used is None:
                raise self._reason()
            return function(used.address, *arguments)
        finally:
            del used  # a traceback may keep this frame

    def use(self, function: Callable[..., _T], *arguments: Any) -> _T | None:
        """``function(pointer, *arguments)``, also where :meth:`call` is refused. None once the object is closed."""
        used = self._object
        try:
            return None if used is None or used.pointer is None else function(used.pointer, *arguments)
        finally:
            del used

    def check(self) -> None:
        """Raises the reason where it may not be used any more."""
        if self._refusal is not None:
            raise self._reason()

    def _reason(self) -> Exception:
        """A copy: what is raised keeps the frames that it passes."""
        refusal = self._refusal
        return RuntimeError("it was closed") if refusal is None else type(refusal)(*refusal.args)

    def refuse(self, reason: Exception) -> None:
        """From now on uses raise it. The first reason stays."""
        self._refusal = self._refusal or reason

    def close(self) -> None:
        """Destroys it, now or after the last use. Call :meth:`refuse` before. Repeated calls do nothing."""
        self._object = None

    def leave_to_parent(self, reason: Exception) -> None:
        """In a child of fork(): its object is the parent's."""
        self._refusal = reason
        if self._object is not None:
            self._object.leave_to_parent()
