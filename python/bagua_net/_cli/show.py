# SPDX-License-Identifier: MIT
"""``bagua-net status``, ``params`` and ``path``: the present state, as text or as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Collection
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .._activation.status import Process, Status
from .._activation.status import status as find_status
from .._errors import LibraryNotFound, LibraryUnusable
from .._machine import interfaces
from .._native.plugin import plugin_path
from .._settings import layers, parameters
from .._text import printable
from . import printing
from .printing import Json

#: Characters of a process's command line where stdout is not a terminal.
_PIPE_COMMAND = 100
#: Where no setting of this shell is the reason.
_LOADED_ALL_THE_SAME = "loaded by (started with `run`, `activate()`, or the CPU backend):"


def _processes(found: Collection[Process]) -> Table:
    """One line each: a command line is cut to the terminal's width, or to a fixed length in a pipe."""
    table = Table.grid("", "", "", padding=(0, 2))
    table.columns[0].no_wrap = table.columns[2].no_wrap = True  # so that the second gives way
    table.columns[0].min_width = max((len(str(one.pid)) for one in found), default=0)  # however narrow the terminal is
    for one in found:
        command = Text(" ".join(printable(one.command, " ").split()), no_wrap=True, overflow="ellipsis")
        if not sys.stdout.isatty():
            command.truncate(_PIPE_COMMAND, overflow="ellipsis")
        table.add_row(str(one.pid), command, escape(printable(one.library, " ")))
    return table


def _complain(*sentences: str) -> None:
    for sentence in sentences:
        print(f"bagua-net: {sentence}", file=sys.stderr)


def _unknown(rows: list[parameters.Parameter], among: layers.Layers) -> list[str]:
    return [one.sentence for one in parameters.unknown(rows, among)]


def _setting(setting: layers.Setting) -> tuple[str, str, str]:
    if setting.layer is None:
        return setting.name, "not set", ""
    return setting.name, escape(setting.value or '""'), escape(setting.layer)


def _status_json(found: Status) -> dict[str, Any]:
    value = dataclasses.asdict(found)
    if found.nccl is not None:
        value["nccl"]["version"] = found.nccl.version_text if found.nccl.version else None
        value["nccl"]["takes_path"] = found.nccl.takes_path
        value["nccl"]["product"] = found.nccl.product
    return value


def _loaded(found: Status, everyone: bool) -> tuple[str | Table, ...]:
    """The processes that have it loaded: this user's, or everyone's."""
    shown = [one for one in found.processes if everyone or one.uid == os.geteuid()]
    parts: list[str | Table] = []
    if shown:
        parts += ["loaded by:" if found.on else _LOADED_ALL_THE_SAME, _processes(shown)]
    elif not found.processes:
        parts.append("loaded by no other process that this user may inspect")
    hidden = len(found.processes) - len(shown)
    if hidden:
        parts.append(f"loaded by processes of other users: {hidden}; --all lists them")
    return tuple(parts)


def _refused(found: Status, refusals: list[str]) -> Status:
    """A job whose parameters the plugin refuses ends with an error."""
    if not found.on or not refusals:
        return found
    return dataclasses.replace(found, on=False, problem=f"a job would end with an error: {refusals[0]}")


def status(
    everyone: Annotated[
        bool, typer.Option("--all", help="List the processes of all users that have it loaded.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Is it on, what set it, and which processes run with it?

    Exit status 0: a job started now would use the plugin; 1: it would not.
    """
    among = layers.of_a_job()
    found = find_status()
    with contextlib.suppress(LibraryNotFound, LibraryUnusable):  # the doctor reports that
        rows = parameters.read(among)
        _complain(*_unknown(rows, among), *filter(None, [interfaces.complaint()]))
        found = _refused(found, parameters.refusals(rows))
    if as_json:
        printing.dump(_status_json(found))
        raise typer.Exit(0 if found.on else 1)
    off = f"[yellow]off[/] for jobs started from this shell: {escape(found.problem or '')}"
    printing.lines("[green]on[/]" if found.on else off)
    printing.lines(printing.grid(map(_setting, (found.plugin, found.network, *found.parameters))))
    if found.nccl is not None:
        printing.lines(f"{found.nccl.full_name}  {escape(str(found.nccl.path))}  ({found.nccl.found_by})")
    printing.lines(*_loaded(found, everyone))
    raise typer.Exit(0 if found.on else 1)


def _value(row: parameters.Parameter) -> str:
    """The value in force, and the source that set it or tried to."""
    if not row.set:
        return row.value
    return f"{row.value} ({row.given} refused, {row.layer})" if row.error else f"{row.value} ({row.layer})"


def params(as_json: Json = False) -> None:
    """List the BAGUA_NET_* parameters with their values in a job.

    The source of each value is shown, too: the environment or a file of NCCL's. Exit status 1: a value is set that
    the plugin refuses.
    """
    among = layers.of_a_job()
    rows = parameters.read(among)
    if as_json:
        printing.dump([dataclasses.asdict(row) for row in rows])
    else:
        table = Table("parameter", "value", "default", "range", "what it does", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(escape, (row.name, _value(row), row.default, row.range, row.help)))
        printing.lines(table)
    refusals = parameters.refusals(rows)
    _complain(*refusals, *_unknown(rows, among))
    raise typer.Exit(1 if refusals else 0)


def path() -> None:
    """Print where the library is."""
    print(plugin_path())


def register(app: typer.Typer, panel: str) -> None:
    """Adds the commands."""
    for command in (status, params, path):
        app.command(rich_help_panel=panel)(command)
