# SPDX-License-Identifier: MIT
"""The ranks that tests share. A run has one pool, the fixture ``pool``. A test asks it for ranks by their number and
the number of hosts that they believe to be on, and leaves their groups as they were.

Idle ranks need memory, so few of them live at once: those that were used longest ago are ended for others.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

from tests.support.ranks import Ranks

#: Processes: one group each of two, three and four ranks, which take about 2 GB.
MOST = 9


class Pool:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: By their number and that of their hosts; those that were used last are at the end.
        self._living: dict[tuple[int, int], Ranks] = {}

    def of(self, size: int, hosts: int = 1) -> Ranks:
        """Ranks 0 to size - 1, the same ones as before if they live. They start with their first call.

        Raises:
            AssertionError: other ranks had to be ended, and did not end as they must (:meth:`Ranks.close`).
        """
        ranks = self._living.pop((size, hosts), None)
        if ranks is None:
            while self._living and size + sum(number for number, _ in self._living) > self._most:
                self._end(next(iter(self._living)))
            ranks = Ranks(size, hosts=hosts)
        self._living[size, hosts] = ranks
        return ranks

    def _end(self, which: tuple[int, int]) -> None:
        size, hosts = which
        try:
            with self._living.pop(which):
                pass
        except AssertionError as error:
            told = f"the {size} ranks on {hosts} hosts that earlier tests used did not end well: {error}"
            raise AssertionError(told) from None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:  # all of them end, even if one does not end well
            for which in list(self._living):
                stack.callback(self._end, which)
