# SPDX-License-Identifier: MIT
"""A barrier through torch's store: rank 0 waits for all others and names the missing ones; they wait for its reply."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ._store import GivenUp, appears


class MembershipCheck:
    """One barrier of a group; ``prefix`` is unique to it in the store."""

    def __init__(self, store: Any, prefix: str, rank: int, nranks: int) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._nranks = nranks
        self._given_up = GivenUp()  # never set: the wait ends by its deadline

    def run(self, limit: timedelta, name_all: bool) -> str:
        """Returns "" when all ranks are here, or after ``limit`` who is missing: on rank 0, the first rank or all.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        seconds, deadline = f"{limit.total_seconds():g} s", time.monotonic() + limit.total_seconds()
        if self._rank != 0:
            self._publish(str(self._rank))
            told = self._appears("all", deadline)
            return "" if told else f"rank 0 did not say within {seconds} that all ranks are here"
        missing = self._missing(deadline, name_all)
        if missing:
            names = ", ".join(map(str, missing))
            return f"rank{'s' if len(missing) > 1 else ''} {names} did not come to monitored_barrier within {seconds}"
        self._publish("all")
        return ""

    def _missing(self, deadline: float, name_all: bool) -> list[int]:
        missing: list[int] = []
        for rank in range(1, self._nranks):
            if not self._appears(str(rank), deadline):
                missing.append(rank)
                if not name_all:
                    break
        return missing

    def _publish(self, what: str) -> None:
        self._store.set(f"{self._prefix}/{what}", b"")

    def _appears(self, what: str, deadline: float) -> bool:
        return appears(self._store, f"{self._prefix}/{what}", deadline, self._given_up)
