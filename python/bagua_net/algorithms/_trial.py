# SPDX-License-Identifier: MIT
"""A trial of candidates: which one is next, how fast each is, which one wins. Of the times of steps only, and those are
equal on all ranks, so that all ranks decide alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

#: Rounds, at most. Four of five steps: a median of 20, where steps vary by a quarter, is off by about 7 %.
_ROUNDS = 4


class Trial:
    """Candidates take turns, in rounds. Only those whose times overlap with the leader's go on to the next round. So
    what a network does for some seconds, such as a congestion window that grows, happens to all of them.

    The first candidate has a head start: another one must save more than that share of its step.
    """

    def __init__(self, candidates: Iterable[str], head_start: float) -> None:
        self._times: dict[str, list[float]] = {name: [] for name in candidates}
        self._first = next(iter(self._times))
        self._head_start = head_start
        self._waiting = list(self._times)
        self._rounds = 1

    @property
    def now(self) -> str:
        """Whose turn it is; "" when the trial is over."""
        return self._waiting[0] if self._waiting else ""

    @property
    def tried_before(self) -> bool:
        """In this round, candidates are tried that were tried before."""
        return self._rounds > 1

    def rule_out(self, name: str) -> None:
        """A candidate that has not had a turn gets none."""
        self._waiting.remove(name)
        del self._times[name]

    def add(self, times: Sequence[float]) -> None:
        """Seconds of steps with the candidate whose turn it is: the turn ends."""
        self._times[self._waiting.pop(0)].extend(times)
        if not self._waiting and self._rounds < _ROUNDS:
            self._rounds += 1
            self._waiting = self._contenders()

    def seconds(self) -> dict[str, float]:
        """Of a step, by candidate that had a turn."""
        return {name: median(times) for name, times in self._times.items() if times}

    def leader(self) -> str:
        """The winner, once the trial is over."""
        return min(self.seconds(), key=lambda name: median(self._handicapped(name)))

    def _handicapped(self, name: str) -> list[float]:
        factor = 1.0 if name == self._first else 1 / (1 - self._head_start)
        return sorted(factor * seconds for seconds in self._times[name])

    def _contenders(self) -> list[str]:
        """The leader, and those whose faster quarter of steps is faster than the leader's slower quarter."""
        leader = self.leader()
        slow = _quarter(self._handicapped(leader)[::-1])
        found = [name for name in self.seconds() if name == leader or _quarter(self._handicapped(name)) < slow]
        return found if len(found) > 1 else []


def _quarter(times: Sequence[float]) -> float:
    """A quarter of them come before it."""
    return times[len(times) // 4]
