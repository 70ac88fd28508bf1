# SPDX-License-Identifier: MIT
"""What the commands print: markup and tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="For programs.")]

#: Width where stdout is not a terminal: the reader's tools wrap long lines.
_PIPE_WIDTH = 1000


def console() -> Console:
    """For standard output. A part of an IPv6 address, as ":b:", is no name of a picture."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, emoji=False)


def can_redraw() -> bool:
    """Is standard output a terminal that takes more than text?"""
    return sys.stdout.isatty() and not console().is_dumb_terminal


def lines(*parts: str | Table) -> None:
    """Prints markup and tables without the blanks that pad the last column."""
    out = console()
    with out.capture() as capture:
        for part in parts:
            out.print(part)
    for line in capture.get().splitlines():
        print(line.rstrip())


def dump(value: object) -> None:
    """Prints it as JSON."""
    json.dump(value, sys.stdout, indent=2, default=str)  # in ASCII, which every stream takes
    sys.stdout.write("\n")


def grid(rows: Iterable[tuple[str, ...]]) -> Table:
    """Columns without a frame."""
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table
