# SPDX-License-Identifier: MIT
"""Two stored runs of the same measurement: what became slower, what faster, beyond what their rounds vary by.

Rounds of two runs have no pairs. A size counts as slower where the median of the later run is above all rounds of the
earlier one but one in five, the earlier median is below all later rounds but one in five, and they differ by more than
2 %. Whether that is this network or the machine is told by the others that both runs measured beside it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ... import _sizes
from ..._errors import BaguaNetError
from ..workload.result import Row
from .record import FORMAT

_NOISE = 0.02
_FEWEST_ROUNDS = 3
#: What must be equal, for times that say anything.
_SAME = ("op", "nranks", "dtype", "redop", "model", "device", "dev")


class NotComparable(BaguaNetError):
    """A file is no stored run, or the two measure different things."""


@dataclass(frozen=True)
class Run:
    """A file of ``bagua-net bench --json``."""

    path: Path
    record: dict[str, Any]
    rows: list[Row]

    @staticmethod
    def load(path: Path) -> Run:
        """Raises NotComparable, or OSError where it cannot be read."""
        names = [field.name for field in fields(Row)]
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise NotComparable(f"{path}: of another version, format {record['format']} and not {FORMAT}")
            rows = [Row(**{name: row[name] for name in names}) for row in record["results"]]
            _ = [record[name] for name in ("machine", "environment", "config", "where")]
        except (KeyError, TypeError, ValueError) as error:
            raise NotComparable(f"{path}: no file of `bagua-net bench --json`") from error
        return Run(path, record, rows)


@dataclass(frozen=True)
class Change:
    """Of one transport at one size."""

    transport: str
    label: str
    size: int
    ratio: float
    """Its speed after, over that before."""
    verdict: str
    """ "slower", "faster" or "unclear"."""


def _beyond(time: float, rounds: list[float]) -> bool:
    """Is it above all of these but one in five?"""
    return sum(each >= time for each in rounds) <= len(rounds) // 5


def _short_of(time: float, rounds: list[float]) -> bool:
    """Is it below all of these but one in five?"""
    return sum(each <= time for each in rounds) <= len(rounds) // 5


def _verdict(before: Row, after: Row) -> str:
    if min(len(before.rounds), len(after.rounds)) < _FEWEST_ROUNDS:
        return "unclear"
    ratio = before.seconds / after.seconds
    if ratio < 1 - _NOISE and _beyond(after.seconds, before.rounds) and _short_of(before.seconds, after.rounds):
        return "slower"
    if ratio > 1 + _NOISE and _beyond(before.seconds, after.rounds) and _short_of(after.seconds, before.rounds):
        return "faster"
    return "unclear"


def changes(before: Run, after: Run) -> list[Change]:
    """Of what both have, in the later one's order.

    Raises:
        NotComparable: they measure different operations, types or numbers of ranks, or have no size in common.
    """
    for name in _SAME:
        was, now = (run.record["config"].get(name) for run in (before, after))
        if was != now:
            raise NotComparable(f"{name} is {was} in {before.path} and {now} in {after.path}")
    earlier = {(row.transport, row.label, row.size): row for row in before.rows}
    found = [
        Change(row.transport, row.label, row.size, was.seconds / row.seconds, _verdict(was, row))
        for row in after.rows
        if (was := earlier.get((row.transport, row.label, row.size))) is not None
    ]
    if not found:
        raise NotComparable(f"{before.path} and {after.path} have no network and size in common")
    return found


# ---- sentences ----


def _span(group: list[Change]) -> str:
    if group[0].label:
        return f"on {group[0].label}"
    first, last = _sizes.show(group[0].size), _sizes.show(group[-1].size)
    return f"at {first}" if len(group) == 1 else f"from {first} to {last}"


def _clause(verdict: str, group: list[Change]) -> str:
    if verdict == "unclear":
        return f"no clear difference {_span(group)}"
    low, high = (f"{pick(change.ratio for change in group):.2f}" for pick in (min, max))
    return f"{verdict} {_span(group)} ({low if low == high else f'{low} to {high}'} × its speed before)"


def _other(before: Run, after: Run) -> Iterator[str]:
    """What else differs."""
    here = ", ".join(
        f"{name} {was.get(name, 'unset')} → {now.get(name, 'unset')}"
        for part in ("machine", "environment", "transports")
        for was, now in [(before.record.get(part, {}), after.record.get(part, {}))]
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    )
    for run in (before, after):
        for sentence in run.record.get("summary", ()):
            if str(sentence).startswith("Mind that"):
                yield f"{run.path}: {sentence}"
    if before.record["where"] != after.record["where"]:
        yield f"Not of one place: {before.record['where']} → {after.record['where']}."
    if here:
        yield f"Changed beside it: {here}."


def sentences(before: Run, after: Run, found: list[Change]) -> Iterator[str]:
    """Each network's changes, what else changed, and whether all changed alike."""
    by_name = {name: list(group) for name, group in itertools.groupby(_sorted(found), lambda change: change.transport)}
    for name, own in by_name.items():
        groups = [(verdict, list(group)) for verdict, group in itertools.groupby(own, lambda change: change.verdict)]
        yield f"{name}: {'; '.join(_clause(*group) for group in groups)}."
    slower = {name for name, own in by_name.items() if any(change.verdict == "slower" for change in own)}
    if len(by_name) > 1 and len(slower) == len(by_name):
        yield "Every network is slower: look at the machine, its load and the network before this package."
    yield from _other(before, after)


def _sorted(found: list[Change]) -> list[Change]:
    order = list(dict.fromkeys(change.transport for change in found))
    return sorted(found, key=lambda change: (order.index(change.transport), change.label, change.size))
