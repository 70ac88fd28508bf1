# SPDX-License-Identifier: MIT
"""What the collectives of processes take, by kind: a line for each, between two looks or since the beginning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import Row, Snapshot
from .limits import number
from .lines import rank_of

#: Fields of a row that only grow.
_SUMS = ("calls", "bytes", "time_us", "waiting_us")


@dataclass(frozen=True)
class Operation:
    pid: str
    rank: str
    name: str
    #: since the beginning, as the following
    calls: int
    failed: int
    #: between the two looks
    calls_per_second: float
    #: of a call, a mean over those that ended between the two looks, or, where none did, over all; None: none has ended
    bytes: float | None
    time_us: float | None
    #: of that time: nothing moved
    waiting: float | None
    #: the last one that has begun runs for so long; None: none does
    running_us: int | None

    def has(self, text: str) -> bool:
        """In one of its words."""
        return any(text.lower() in word.lower() for word in (self.pid, self.rank, self.name))


def _line(snapshot: Snapshot, row: Row, before: Row | None, seconds: float) -> Operation:
    lately = {name: number(row, name) - number(before, name) for name in _SUMS}
    counts = lately if lately["calls"] > 0 else {name: number(row, name) for name in _SUMS}
    calls, time_us = counts["calls"], counts["time_us"]
    published = number(snapshot.process, "published_us")
    return Operation(
        pid=str(snapshot.process["pid"]),
        rank=rank_of(snapshot),
        name=str(row["operation"]),
        calls=number(row, "calls"),
        failed=number(row, "failed"),
        calls_per_second=max(0, lately["calls"]) / seconds if seconds > 0 else 0.0,
        bytes=counts["bytes"] / calls if calls else None,
        time_us=time_us / calls if calls else None,
        waiting=min(1.0, counts["waiting_us"] / time_us) if time_us else None,
        running_us=max(0, published - number(row, "began_us")) if number(row, "running") and snapshot.lives else None,
    )


def of_processes(now: Iterable[Snapshot], before: Mapping[Path, Snapshot]) -> Iterator[Operation]:
    """Of a process that was not there at the first look: since it began."""
    for snapshot in now:
        earlier = before.get(snapshot.path)
        rows = {row["operation"]: row for row in (earlier.operations if earlier else ())}
        since = number(earlier.process, "published_us") if earlier else number(snapshot.process, "started_us")
        seconds = (number(snapshot.process, "published_us") - since) / 1e6
        for row in snapshot.operations:
            yield _line(snapshot, row, rows.get(row["operation"]), seconds)
