# SPDX-License-Identifier: MIT
"""A results file: every reading, and the machine it was read on. JSON lines, rewritten after each reading.

The first line describes the run, and each line below it is a row of the report with all of its readings. A field with
its default value is left out, and a figure has six digits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.run.scenarios import WORKS, Cell

FORMAT = 3
_DIGITS = 6


class ResultsUnusable(Exception):
    """The results file cannot be read or continued; the text says why."""


@dataclass
class Run:
    """One reading, or one that failed. Units as in :class:`reading.Reading`."""

    side: str
    choice: str = ""
    """The setting of this side in words, where there are several."""
    pair: int = 0
    """Below 0: a round of the screening, in which the settings of this side are chosen."""
    seed: int = 0
    """Of the hash that maps flows to classes; 0 where there are none."""
    value: float | None = None
    per_rank: list[float] = field(default_factory=list)
    neighbours: float = 0.0
    """Share of the machine's processor time that other processes took meanwhile."""
    error: str = ""
    details: dict[str, float] = field(default_factory=dict)
    """Further figures (:attr:`reading.Reading.details`)."""


@dataclass
class CellRecord:
    """The readings of one cell."""

    cell: Cell
    limit: float | None = None
    """Capacity of the flow classes, or of the cables together, GB/s; None: no caps."""
    choices: dict[str, str] = field(default_factory=dict)
    """side → the setting whose readings count, where there are several."""
    finalists: dict[str, list[str]] = field(default_factory=dict)
    """side → the settings that the screening left, which are read in every pair."""
    runs: list[Run] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """The counts of each relay of this cell (:attr:`wan.Wan.counts`)."""

    def _counting(self, side: str) -> Iterator[Run]:
        """The readings of the setting that counts, in pairs."""
        choice = self.choices.get(side)
        for run in self.runs:
            if run.side == side and run.pair >= 0 and choice in (None, run.choice):
                yield run

    def setting(self, side: str) -> str:
        """The setting that counts, in words; "" where this side has none."""
        return next((run.choice for run in self._counting(side)), "")

    def values(self, side: str) -> dict[int, float]:
        """pair → value, of the readings that count."""
        return {run.pair: run.value for run in self._counting(side) if run.value is not None}

    def details(self, side: str, name: str) -> dict[int, float]:
        """pair → the further figure of this name, of the readings that count."""
        return {run.pair: run.details[name] for run in self._counting(side) if name in run.details}

    def failures(self, side: str) -> list[str]:
        """The errors of the readings that count."""
        return [run.error for run in self._counting(side) if run.error]

    def keep(self, run: Run) -> None:
        """Adds a reading, in place of an earlier one of the same side, setting and pair."""
        key = (run.side, run.choice, run.pair)
        self.runs = [kept for kept in self.runs if (kept.side, kept.choice, kept.pair) != key]
        self.runs.append(run)

    def has(self, side: str, choice: str, pair: int) -> bool:
        """Was this read or tried already?"""
        return any((run.side, run.choice, run.pair) == (side, choice, pair) for run in self.runs)

    def ranking(self, side: str, screening: bool) -> list[str]:
        """The settings of a side by the median of their readings, best first: of the screening, or of the pairs."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            if run.side == side and (run.pair < 0) is screening and run.value is not None:
                found.setdefault(run.choice, []).append(run.value)
        return sorted(found, key=lambda choice: median(found[choice]), reverse=not WORKS[self.cell.work].less)

    def choose(self) -> None:
        """Of each side with several finalists, the one with the best median over the pairs counts from now on."""
        for side in self.finalists:
            ranking = self.ranking(side, screening=False)
            if ranking:
                self.choices[side] = ranking[0]


def _sparse(value: Any, *without: str) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found = {}
    for each in dataclasses.fields(value):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        content = getattr(value, each.name)
        if each.name not in without and content != default:
            found[each.name] = content
    return found


def _short(value: Any) -> Any:
    """The same with rounded figures."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, (list, tuple)) else value


def _text(content: dict[str, Any]) -> str:
    return json.dumps(_short(content), ensure_ascii=False) + "\n"


@dataclass
class Results:
    """A whole run of the track."""

    started: str
    """UTC, ISO 8601."""
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    """Congestion control, versions, variables given to the plugin, sides, pairs, cells, effort."""
    cells: dict[str, CellRecord] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The lines of the file."""
        yield _text({"format": FORMAT, **_sparse(self, "cells")})
        for record in self.cells.values():
            runs = [_sparse(run) for run in record.runs]
            yield _text({"cell": _sparse(record.cell), **_sparse(record, "cell", "runs"), "runs": runs})

    def save(self, path: Path) -> None:
        """Replaces the file atomically, so that an interrupted run can be continued."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text("".join(self.lines()))
        draft.replace(path)


def _cell(fields: dict[str, Any]) -> Cell:
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Cell(**given)


def _parse(lines: Iterable[str]) -> Results:
    head, *rows = map(json.loads, lines)
    if head.pop("format", None) != FORMAT:
        raise ValueError(f"it is of another format than {FORMAT}")
    stored = Results(**{"machine": {}, "settings": {}, **head})
    for row in rows:
        record = CellRecord(**{**row, "cell": _cell(row["cell"]), "runs": [Run(**run) for run in row["runs"]]})
        stored.cells[record.cell.key] = record
    return stored


def load(path: Path) -> Results:
    """Reads a results file.

    Raises:
        ResultsUnusable: the file does not exist, or has another format.
    """
    try:
        return _parse(path.read_text().splitlines())
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ResultsUnusable(f"{path} cannot be read: {error}") from error
