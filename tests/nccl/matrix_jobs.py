# SPDX-License-Identifier: MIT
"""Rows of the matrix: one release, one network and one number of ranks, with all settings in one set of processes.
NCCL's log has to prove that each setting took effect."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.nccl import matrix_log, nccl_job, releases
from tests.nccl.matrix_cells import BROADCASTS, DEFAULT, SETTINGS, Amount, Cell, Setting, plan
from tests.nccl.matrix_values import TYPES

#: These take Ring for large messages even where PAT is asked for.
_LEAVES_PAT = ("2.23.",)
#: With so many ranks a connection of the plugin has so many streams from the start, so that messages are cut. Otherwise
#: it begins with one.
STRIPED, STREAMS = 3, 4
#: From this release on, broadcasts from several roots in a group are an operation without a choice in the log.
_FIRST_WITH_BROADCASTS = (2, 29)
#: From so many bytes on, a network lets the kernel copy received data to its place. Where Linux copies with the
#: processor's string instruction, the bytes become visible in any order, and with LL128 a few of ten thousand cells see
#: a line's flag before its data. Such a cell is wrong if it is wrong again, or if there are many.
_UNORDERED = {nccl_job.BAGUA: 7 << 10, nccl_job.SOCKET: 0}
_AGAIN = 10
#: Of a setting's cells.
_MOST_ONCE = 0.01


class WrongChoice(AssertionError):
    """NCCL ran something else than a cell was to show."""


@dataclass
class Row:
    """A row that has run."""

    version: str
    network: str
    size: int
    """Ranks."""
    cells: int = 0
    wrong: list[str] = field(default_factory=list)
    once: list[str] = field(default_factory=list)
    """Wrong with LL128 once, and right in every repetition."""
    seconds: float = 0.0
    ran: dict[str, set[matrix_log.Choice]] = field(default_factory=dict)
    """By operation: what NCCL ran."""


class Ranks:
    """The launcher's side of :mod:`matrix_rank`."""

    def __init__(self, job: nccl_job.Job) -> None:
        self._job = job
        self._read = 0

    def open(self, setting: Setting) -> str:
        """Makes a communicator; what NCCL's log says about it."""
        self._job.ask({"open": {"NCCL_ALGO": setting.algorithm or None, "NCCL_PROTO": setting.protocol or None}})
        return self.log()

    def run(self, cells: Iterable[Cell]) -> dict[int, str]:
        """Runs cells; what is wrong, by the cell's number."""
        replies = self._job.ask({"cells": [cell.to_json() for cell in cells]})
        texts: dict[int, list[str]] = {}
        for rank, reply in enumerate(replies):
            for number, text in reply:
                texts.setdefault(number, []).append(f"rank {rank}: {text}")
        return {number: "; ".join(found) for number, found in texts.items()}

    def refusals(self, cell: Cell) -> list[str]:
        """Each rank's error for a cell; "" where NCCL ran it."""
        replies: list[str] = self._job.ask({"refused": cell.to_json()})
        return replies

    def close(self) -> None:
        """Releases the communicator."""
        self._job.ask({"close": True})

    def log(self) -> str:
        """What NCCL has logged on rank 0 since the last call."""
        text = self._job.log(0)
        new, self._read = text[self._read :], len(text)
        return new


def _variables(version: str, size: int) -> dict[str, str]:
    made = releases.settings(version)
    return made | {"BAGUA_NET_MIN_NSTREAMS": str(STREAMS)} if size == STRIPED else made


def _check_choice(row: Row, setting: Setting, op: str, opened: str, log: str) -> None:
    """Raises WrongChoice unless the setting has taken effect."""
    where = f"NCCL {row.version}, {row.size} ranks, {op} with {setting.name}"
    release = tuple(map(int, row.version.split(".")))
    together = op == BROADCASTS and release >= _FIRST_WITH_BROADCASTS
    if together and matrix_log.FUNCTIONS["broadcast"] in matrix_log.choices(log):
        raise WrongChoice(f"{where}: NCCL ran single broadcasts")
    if op not in matrix_log.FUNCTIONS:
        return
    ran = matrix_log.ran(row.version, op, opened, log)
    row.ran.setdefault(op, set()).update(ran)
    wanted = {(setting.algorithm, setting.protocol)}
    if setting.algorithm == "PAT" and row.version.startswith(_LEAVES_PAT) and wanted < ran:
        wanted.add(("Ring", setting.protocol))
    if setting != DEFAULT and ran != wanted:
        raise WrongChoice(f"{where}: NCCL ran {sorted(ran)}")


def _run_setting(row: Row, ranks: Ranks, setting: Setting, amount: Amount) -> None:
    cells = plan(row.version, setting, row.size, amount)
    if not any(cells.values()):
        return
    opened = ranks.open(setting)
    network = matrix_log.network(opened)
    if network != nccl_job.NAMES[row.network]:
        raise WrongChoice(f"NCCL {row.version} uses {network}, not {nccl_job.NAMES[row.network]}")
    once: list[str] = []
    for op, those in cells.items():
        if not those:
            continue
        wrong = ranks.run(those)
        row.cells += len(those)
        _check_choice(row, setting, op, opened, ranks.log())
        for number, text in wrong.items():
            excused = _may_be_unordered(row, setting, those[number]) and not _is_wrong_again(ranks, those[number])
            (once if excused else row.wrong).append(f"{setting.name}: {text}")
    (row.wrong if len(once) > _MOST_ONCE * sum(map(len, cells.values())) else row.once).extend(once)
    ranks.close()


def _may_be_unordered(row: Row, setting: Setting, cell: Cell) -> bool:
    size = sum(part.count * TYPES[part.dtype].size for part in (cell, *cell.parts))
    return setting.protocol == "LL128" and size >= _UNORDERED[row.network]


def _is_wrong_again(ranks: Ranks, cell: Cell) -> bool:
    wrong = ranks.run([cell] * _AGAIN)
    ranks.log()
    return bool(wrong)


def run(
    version: str,
    network: str,
    size: int,
    amount: Amount,
    directory: Path,
    *,
    settings: Iterable[Setting] = SETTINGS,
    more: Mapping[str, str] | None = None,
    plugin: Path | None = None,
    seconds: float = 300.0,
) -> Row:
    """Runs a row.

    Args:
        size: ranks.
        directory: for logs.
        more: variables of the ranks.
        plugin: of another build.
        seconds: the limit for the cells of one operation with one setting.

    Raises:
        JobFailed: a rank failed or took too long.
        WrongChoice: NCCL did not run what was asked for.
    """
    row, start = Row(version, network, size), time.monotonic()
    own = {**_variables(version, size), **(more or {})}
    with nccl_job.start(
        "matrix_rank", size, version, network, directory, settings=own, plugin=plugin, seconds=seconds
    ) as job:
        ranks = Ranks(job)
        for setting in settings:
            _run_setting(row, ranks, setting, amount)
        job.finish()
    row.seconds = time.monotonic() - start
    return row
