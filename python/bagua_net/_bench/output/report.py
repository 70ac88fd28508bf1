# SPDX-License-Identifier: MIT
"""The table, printed row by row: nccl-tests' columns and the transport; on a terminal, a progress bar below."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..workload.result import Row

_WIDTHS = (13, 13, 9, 7, 13, 11, 8, 8, 8)
_HEADINGS = (
    ("size", "count", "type", "redop", "transport", "time", "algbw", "busbw", "#wrong"),
    ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""),
)


def _line(cells: tuple[str, ...]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def headings() -> list[str]:
    return ["#" + _line(row)[1:] for row in _HEADINGS]


def line(row: Row) -> str:
    return _line(
        (
            str(row.size),
            str(row.count),
            row.dtype,
            row.redop,
            row.transport,
            f"{row.seconds * 1e6:.2f}" if row.seconds < 0.01 else f"{row.seconds * 1e6:.0f}",
            f"{row.algbw:.3f}",
            f"{row.busbw:.3f}",
            str(row.wrong),
        )
    )


class Report:
    """Prints lines to stdout; on a terminal, with a progress bar below that disappears at the end.

    Args:
        total: the number of workloads.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._progress: Progress | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=self._console, transient=True, refresh_per_second=2)
            self._task = self._progress.add_task("connecting", total=total)

    def __enter__(self) -> Report:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text)

    def rows(self, rows: list[Row]) -> None:
        for row in rows:
            self.say(line(row))
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description="measuring")
