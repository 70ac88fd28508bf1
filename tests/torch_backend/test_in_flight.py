# SPDX-License-Identifier: MIT
"""A group's operations in flight: a thread begins one, or sees one end, between any two steps of another thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from bagua_net.torch import _in_flight
from tests.support.between import Case, at_each_step

#: Enough for two looks at the oldest, and then to see all that end.
_WORKS, _LATER = 24, 40


class _Work:
    """What InFlight asks of an operation: whether it is over, which it then removes."""

    def __init__(self, in_flight: Any) -> None:
        self.over = False
        self._in_flight = in_flight

    def look(self) -> bool:
        if self.over:
            self._in_flight.remove(self)
        return self.over


@dataclass
class _Begun:
    """An operation whose work its caller has dropped."""

    work: weakref.ref[_Work]
    over: bool = False

    def end(self) -> None:
        self.over = True
        if (work := self.work()) is not None:
            work.over = True


class _Operations:
    """Half of them are over."""

    def __init__(self) -> None:
        self._in_flight: Any = _in_flight.InFlight()
        self._begun: list[_Begun] = []

    def begin(self) -> None:
        work = _Work(self._in_flight)
        self._begun.append(_Begun(weakref.ref(work)))
        self._in_flight.add(work)

    def begin_all(self) -> None:
        for number in range(_WORKS):
            self.begin()
            if number % 2 == 0:
                self._begun[number].end()

    def end_first(self) -> None:
        if self._begun and (work := self._begun[0].work()) is not None:
            self._begun[0].end()
            work.look()

    def check(self) -> None:
        """Those in progress are kept, and those that are over are forgotten in time."""
        assert all(each.over or each.work() is not None for each in self._begun)
        for _ in range(_LATER):
            self.begin()
        assert not any(each.over and each.work() is not None for each in self._begun)


@pytest.mark.parametrize("meanwhile", [_Operations.begin, _Operations.end_first], ids=["begins", "ends"])
def test_another_thread_between_any_two_steps(meanwhile: Callable[[_Operations], None]) -> None:
    def case() -> Case:
        operations = _Operations()
        return Case(operations.begin_all, partial(meanwhile, operations), operations.check)

    assert at_each_step([_in_flight], case) > 2 * _WORKS
