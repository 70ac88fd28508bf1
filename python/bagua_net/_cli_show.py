# SPDX-License-Identifier: MIT
"""``bagua-net status``, ``doctor`` and ``params``: what is so, as text or as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from . import _doctor, _doctor_network, _params, _status
from ._plugin import plugin_path

Json = Annotated[bool, typer.Option("--json", help="For programs.")]

_VERDICTS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
#: Width where stdout is no terminal: long lines are for the reader's tools to wrap.
_PIPE_WIDTH = 1000


def _print(*parts: str | Table) -> None:
    """Markup and tables to stdout, without the blanks that fill the last column."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    for line in capture.get().splitlines():
        print(line.rstrip())


def _dump(value: object) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def _grid(rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table


def _processes(found: Iterable[_status.Process]) -> Table:
    """One line each: where the terminal is too narrow, the command lines are cut."""
    table = Table.grid("", "", "", padding=(0, 2))
    table.columns[0].no_wrap = table.columns[2].no_wrap = True  # so that the second gives way
    for one in found:
        printable = "".join(char if char.isprintable() else " " for char in one.command)
        command = Text(" ".join(printable.split()), no_wrap=True, overflow="ellipsis")
        table.add_row(str(one.pid), command, escape(one.library))
    return table


def _setting(setting: _status.Setting) -> tuple[str, str, str]:
    if setting.layer is None:
        return setting.name, "not set", ""
    return setting.name, escape(setting.value or '""'), escape(setting.layer)


def _status_json(found: _status.Status) -> dict[str, Any]:
    value = dataclasses.asdict(found)
    if found.nccl is not None:
        value["nccl"]["version"] = found.nccl.version_text if found.nccl.version else None
        value["nccl"]["takes_path"] = found.nccl.takes_path
    return value


def status(as_json: Json = False) -> None:
    """Is it on, who set it, and who runs with it?

    Exit status 0: a job started now would use the plugin; 1: it would not.
    """
    found = _status.status()
    if as_json:
        _dump(_status_json(found))
        raise typer.Exit(0 if found.on else 1)
    _print("[green]on[/]" if found.on else f"[yellow]off[/]: {escape(found.problem or '')}")
    _print(_grid(map(_setting, (found.plugin, found.network, *found.parameters))))
    if found.nccl is not None:
        _print(f"NCCL {found.nccl.version_text}  {escape(str(found.nccl.path))}  ({found.nccl.found_by})")
    if found.processes:
        _print("loaded by:", _processes(found.processes))
    else:
        _print("loaded by no other process that this user may look into")
    raise typer.Exit(0 if found.on else 1)


def doctor(as_json: Json = False) -> None:
    """Check this machine: verdict, fact, fix.

    Exit status 1: something fails. Warnings leave it 0.
    """
    checks = list(_doctor.run((*_doctor.CHECKS, *_doctor_network.CHECKS)))
    failed = any(check.verdict == "fail" for check in checks)
    if as_json:
        _dump([dataclasses.asdict(check) for check in checks])
    else:
        rows = ((_VERDICTS[check.verdict], check.name, _with_fix(check)) for check in checks)
        _print(_grid(rows))
    raise typer.Exit(1 if failed else 0)


def _with_fix(check: _doctor.Check) -> str:
    return escape(check.fact) + (f" [bold]→ {escape(check.fix)}[/]" if check.fix else "")


def params(as_json: Json = False) -> None:
    """List every BAGUA_NET_* parameter and its value.

    Exit status 1: the environment has a value that the plugin refuses.
    """
    rows = _params.read()
    if as_json:
        _dump([dataclasses.asdict(row) for row in rows])
    else:
        table = Table("parameter", "value", "default", "range", "what it does", box=None, pad_edge=False)
        for row in rows:
            cells = (row.name, row.value + (" (set)" if row.set else ""), row.default, row.range, row.help)
            table.add_row(*map(escape, cells))
        _print(table)
    errors = [row.error for row in rows if row.error]
    for error in errors:
        print(error, file=sys.stderr)
    raise typer.Exit(1 if errors else 0)


def path() -> None:
    """Print where the library is."""
    print(plugin_path())


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (status, doctor, params, path):
        app.command()(command)
