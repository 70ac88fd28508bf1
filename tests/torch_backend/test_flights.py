# SPDX-License-Identifier: MIT
"""A group's operations in progress: threads begin theirs, and see them end, between any two steps of each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from bagua_net.torch._work import _EVERY, Flights

#: Enough for two looks.
_WORKS = 3 * _EVERY


class _Work:
    """What Flights asks of an operation: whether it is over, which it then tells them."""

    def __init__(self, flights: Any) -> None:
        self.over = False
        self._flights = flights

    def look(self) -> bool:
        if self.over:
            self._flights.landed(self)
        return self.over


class _Between:
    """Another thread does something before the Nth instruction of this module's callee."""

    def __init__(self, at: int, done: Callable[[], None]) -> None:
        self._left = at
        self._done = done

    def steps_of(self, operation: Callable[[], None]) -> bool:
        """False: it has fewer."""
        sys.settrace(self._enter)
        try:
            operation()
        finally:
            sys.settrace(None)
        return self._left <= 0

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_globals["__name__"] != Flights.__module__:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                other = threading.Thread(target=self._done)
                other.start()
                other.join()
        return self._step


class _Case:
    """Works, half of them over, and the flights that keep them."""

    def __init__(self) -> None:
        self.flights: Any = Flights()
        self.works: list[_Work] = []

    def begin(self) -> None:
        work = _Work(self.flights)
        self.works.append(work)
        self.flights.began(work)

    def begin_all(self) -> None:
        for number in range(_WORKS):
            self.begin()
            self.works[number].over = number % 2 == 0

    def end_first(self) -> None:
        if self.works:
            self.works[0].over = True
            self.works[0].look()

    def check(self) -> None:
        """Those in progress are kept, and those that are over are forgotten in time."""
        kept = set(self.flights._works)
        assert {id(each) for each in self.works if not each.over} <= kept
        for _ in range(2 * _EVERY):
            self.begin()
        assert not {id(each) for each in self.works if each.over} & set(self.flights._works)


@pytest.mark.parametrize("what", [_Case.begin, _Case.end_first], ids=["begins", "ends"])
def test_another_thread_between_any_two_steps(what: Callable[[_Case], None]) -> None:
    at, more = 0, True
    while more:
        at += 1
        case = _Case()
        more = _Between(at, partial(what, case)).steps_of(case.begin_all)
        case.check()
    assert at > 10 * _WORKS
