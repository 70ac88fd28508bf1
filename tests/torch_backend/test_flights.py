# SPDX-License-Identifier: MIT
"""A group's operations in progress: a thread begins one, or sees one end, between any two steps of another thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bagua_net.torch import _work
from tests.support.between import Case, at_each_step

#: Enough for two looks.
_WORKS = 3 * _work._EVERY


class _Work:
    """What Flights asks of an operation: whether it is over, which it then tells them."""

    def __init__(self, flights: Any) -> None:
        self.over = False
        self._flights = flights

    def look(self) -> bool:
        if self.over:
            self._flights.landed(self)
        return self.over


class _Operations:
    """Half of them are over."""

    def __init__(self) -> None:
        self._flights: Any = _work.Flights()
        self._works: list[_Work] = []

    def begin(self) -> None:
        work = _Work(self._flights)
        self._works.append(work)
        self._flights.began(work)

    def begin_all(self) -> None:
        for number in range(_WORKS):
            self.begin()
            self._works[number].over = number % 2 == 0

    def end_first(self) -> None:
        if self._works:
            self._works[0].over = True
            self._works[0].look()

    def check(self) -> None:
        """Those in progress are kept, and those that are over are forgotten in time."""
        assert {id(each) for each in self._works if not each.over} <= set(self._flights._works)
        for _ in range(2 * _work._EVERY):
            self.begin()
        assert not {id(each) for each in self._works if each.over} & set(self._flights._works)


@pytest.mark.parametrize("meanwhile", [_Operations.begin, _Operations.end_first], ids=["begins", "ends"])
def test_another_thread_between_any_two_steps(meanwhile: Callable[[_Operations], None]) -> None:
    def case() -> Case:
        operations = _Operations()
        return Case(operations.begin_all, partial(meanwhile, operations), operations.check)

    assert at_each_step([_work], case) > 2 * _WORKS
