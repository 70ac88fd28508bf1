# SPDX-License-Identifier: MIT
"""A group's operations in flight: a caller may drop a work at once, but its memory is in use until the end."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

#: Every so many operations, so many old ones are looked at: more than were added, so that all that end are forgotten.
_EVERY, _LOOKS = 8, 12
#: The same after a look that has found none that is over: thousands of receives may be posted before the first send.
_SELDOM = 16

#: The threads that have started an operation of any group, by their identifiers; perhaps some that have ended.
callers: set[int] = set()


_here = threading.local()


class Looked(Protocol):
    @property
    def has_future(self) -> bool:
        """Is it in progress, and may somebody wait for its future?"""

    @property
    def is_posted(self) -> bool:
        """Does the library know of all of it? Before, nobody may wait for it."""

    def look(self) -> bool:
        """Is it over? Where it is, it is removed. It never waits for another thread."""

    def finish(self) -> bool:
        """The same, but waits for another thread that is storing what it has."""

    def end(self) -> None:
        """Waits until it is over."""

    def leave_to_parent(self) -> None:
        """In a child of fork(): another thread of the parent may have had its lock."""


class InFlight:
    """Any thread: each step is one operation on a dict.

    What an operation has for tensors that are not contiguous is stored in them when somebody looks at it. So whoever
    learns that a later operation is over looks at those before it, and an operation on the same memory waits for them:
    as for other tensors, in which the library writes.
    """

    def __init__(self) -> None:
        self._works: OrderedDict[int, Looked] = OrderedDict()
        #: Of these, collectives with something to store, and the memory that it is for.
        self._to_store: dict[int, tuple[Looked, set[int]]] = {}
        self._added = itertools.count(1)
        self._due = _EVERY

    def add(self, work: Looked) -> None:
        """Before the library knows of it, by the thread that starts it."""
        callers.add(threading.get_ident())
        self._works[id(work)] = work
        added = next(self._added)
        if added >= self._due:
            self._due = added + (_EVERY if self._look() else _SELDOM)

    def _look(self) -> bool:
        """At the oldest; those in progress move to the end, so that the others have their turn. Was any over?"""
        found = False
        # chain() makes the dict's iterator within list(): between two calls, another thread might change the dict.
        for old in list(itertools.islice(itertools.chain(self._works.values()), _LOOKS)):
            if old.look():
                found = True
                continue
            try:
                self._works.move_to_end(id(old))
            except KeyError:  # another thread has seen its end just now
                found = True
        return found

    def remove(self, work: Looked) -> None:
        self._works.pop(id(work), None)
        self._to_store.pop(id(work), None)

    def will_store(self, work: Looked, memory: set[int]) -> None:
        """In the memory at these addresses, once it is over."""
        self._to_store[id(work)] = work, memory

    def store(self, *, may_wait: bool = True) -> bool:
        """What those have that are over. True."""
        for work, _ in list(self._to_store.values()):
            if may_wait:
                work.finish()
            else:
                work.look()
        return True

    def await_stores(self, memory: set[int]) -> None:
        """Those that will store something in this memory end first. Not in a callback, for whose end others wait."""
        if getattr(_here, "calls_back", False):
            return
        for work, its in list(self._to_store.values()):
            if work.is_posted and not memory.isdisjoint(its):
                work.end()

    @contextlib.contextmanager
    def calling_back(self) -> Iterator[None]:
        """This thread runs the callbacks of an operation."""
        before, _here.calls_back = getattr(_here, "calls_back", False), True
        try:
            yield
        finally:
            _here.calls_back = before

    @property
    def stores(self) -> bool:
        """Has any operation in progress something to store?"""
        return bool(self._to_store)

    def has_futures(self) -> bool:
        """Of operations in progress."""
        return any(work.has_future for work in list(self._works.values()))

    def settle(self) -> None:
        """Forgets all that are over."""
        for work in list(self._works.values()):
            work.look()

    def leave_to_parent(self) -> None:
        """In a child of fork(): no memory is in use."""
        for work in list(self._works.values()):
            work.leave_to_parent()
        self._works, self._to_store = OrderedDict(), {}
