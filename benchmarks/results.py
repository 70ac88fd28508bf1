# SPDX-License-Identifier: MIT
"""A results file: everything that was read, and on what. JSON, rewritten after each reading."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios import Cell

FORMAT = 1


class ResultsUnusable(Exception):
    """The results file cannot be continued; the text says why."""


@dataclass
class Run:
    """One reading, or one that failed. Units as in :class:`reading.Reading`."""

    side: str
    choice: str
    pair: int
    """-1: read while the settings of this side were being chosen."""
    seed: int
    """Of the hash that maps flows to classes; 0 where there are none."""
    value: float | None
    per_rank: list[float]
    neighbours: float = 0.0
    """Share of the processors' time that other processes of the machine took meanwhile."""
    error: str = ""
    details: dict[str, float] = field(default_factory=dict)
    """What else was noticed (:attr:`reading.Reading.details`)."""


@dataclass
class CellRecord:
    """What was read of one cell."""

    cell: Cell
    limit: float | None
    """Capacity of the flow classes, or of the cables together, GB/s; None: no caps."""
    choices: dict[str, str] = field(default_factory=dict)
    """side → the setting that was chosen for it, where there were several."""
    runs: list[Run] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """What each relay of this cell counted (:attr:`wan.Wan.counts`)."""

    def values(self, side: str) -> dict[int, float]:
        """pair → value, of the readings that count."""
        return {
            run.pair: run.value for run in self.runs if run.side == side and run.pair >= 0 and run.value is not None
        }

    def details(self, side: str, name: str) -> dict[int, float]:
        """pair → what was noticed under this name, of the readings that count."""
        runs = [run for run in self.runs if run.side == side and run.pair >= 0]
        return {run.pair: run.details[name] for run in runs if name in run.details}

    def keep(self, run: Run) -> None:
        """In place of what was read of this side in this pair; of each setting, where one is being chosen."""
        self.runs = [kept for kept in self.runs if (kept.side, kept.pair) != (run.side, run.pair) or run.pair < 0]
        self.runs.append(run)

    def has(self, side: str, pair: int) -> bool:
        """Was this read already (or tried)?"""
        return any(run.side == side and run.pair == pair for run in self.runs)

    def failures(self, side: str) -> list[str]:
        """What went wrong in the readings that count."""
        return [run.error for run in self.runs if run.side == side and run.pair >= 0 and run.error]


@dataclass
class Results:
    """A whole track."""

    started: str
    """UTC, ISO 8601."""
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    """Congestion control, versions, variables given to the plugin, effort."""
    cells: dict[str, CellRecord] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replaces the file at once, so that an interrupted track can be continued."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        draft.replace(path)


def _record(row: dict[str, Any]) -> CellRecord:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row["cell"].items()}
    cell = Cell(**fields)
    return CellRecord(cell, row["limit"], row["choices"], [Run(**run) for run in row["runs"]], row.get("lines", []))


def load(path: Path) -> Results:
    """Reads a results file.

    Raises:
        ResultsUnusable: there is none, or it is of another format.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsUnusable(f"{path} cannot be read: {error}") from error
    if content.pop("format", None) != FORMAT:
        raise ResultsUnusable(f"{path} is of another format than {FORMAT}")
    rows = content.pop("cells")
    return Results(**content, cells={key: _record(row) for key, row in rows.items()})
