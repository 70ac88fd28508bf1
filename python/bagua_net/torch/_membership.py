# SPDX-License-Identifier: MIT
"""A barrier through torch's store: rank 0 waits for all others and names the missing ones; they wait for its reply."""

from __future__ import annotations

import time
from datetime import timedelta

from ._meeting import Meeting
from ._store import GivenUp, becomes, value_of


class MembershipCheck:
    """One barrier of a group, which this rank has numbered. Each rank has one key, for all its barriers."""

    def __init__(self, meeting: Meeting, number: int) -> None:
        self._meeting = meeting
        self._number = number
        self._given_up = GivenUp()  # never set: the wait ends by its deadline

    def run(self, limit: timedelta, name_all: bool) -> str:
        """Returns "" when all ranks are here, or after ``limit`` who is missing: on rank 0, the first rank or all.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        seconds, deadline = f"{limit.total_seconds():g} s", time.monotonic() + limit.total_seconds()
        if self._meeting.rank != 0:
            self._publish()
            told = self._meeting.wait(deadline, self._given_up) and self._comes(0, deadline)
            return "" if told else f"rank 0 did not say within {seconds} that all ranks are here"
        missing = self._missing(deadline, name_all)
        if missing:
            names = ", ".join(map(str, missing))
            return f"rank{'s' if len(missing) > 1 else ''} {names} did not come to monitored_barrier within {seconds}"
        self._publish()
        return ""

    def _missing(self, deadline: float, name_all: bool) -> list[int]:
        missing: list[int] = []
        for rank in range(1, self._meeting.nranks):
            if not self._comes(rank, deadline):
                missing.append(rank)
                if not name_all:
                    break
        return missing

    def _publish(self) -> None:
        self._meeting.store.set(f"barrier/{self._meeting.rank}", f"{self._meeting.identity} {self._number}")

    def _comes(self, rank: int, deadline: float) -> bool:
        def has_come() -> bool:
            identity, _, number = value_of(self._meeting.store, f"barrier/{rank}").decode().partition(" ")
            return bool(identity) and identity == self._meeting.identity_of(rank) and int(number) >= self._number

        return becomes(has_come, deadline, self._given_up)
