# SPDX-License-Identifier: MIT
"""``bagua-net explain``: why running connections are as slow as they are."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from .._stats import causes, connecting, files, limits
from .._stats.causes import Cause, Surroundings
from .._stats.files import Snapshot
from .._stats.limits import Rate, number

#: Two of a process's rounds at least, and long enough for a job's steps of a fraction of a second.
_SECONDS = 3.0
_WIDEST = 100
_PIPE_WIDTH = 1000


@dataclass(frozen=True)
class _Group:
    """Connections of a process with one host that the same thing holds back."""

    cause: Cause
    rates: list[Rate]

    @property
    def sender(self) -> bool:
        return self.rates[0].sender

    @property
    def peer(self) -> str:
        return causes.host(self.rates[0].connection["peer"])

    @property
    def bytes_per_second(self) -> float:
        return sum(rate.bytes_per_second for rate in self.rates)


@dataclass(frozen=True)
class _Process:
    snapshot: Snapshot
    rates: list[Rate]
    groups: list[_Group]
    #: containers may share the directory, each with processes of the same numbers
    alone: bool

    @property
    def name(self) -> str:
        """By which it is told from the others."""
        name = files.name_of(self.snapshot)
        return name if self.alone else f"{name} on {self.snapshot.process.get('host', '')}"

    @property
    def receives(self) -> float:
        return sum(rate.bytes_per_second for rate in self.rates if not rate.sender)


def _device(rate: Rate) -> str:
    return str(rate.connection.get("device", ""))


def _together(processes: Sequence[tuple[Snapshot, list[Rate]]]) -> dict[str, float] | None:
    """What all connections that are shown send through each device; None: some are not shown."""
    if any(number(snapshot.process, "connections_left_out") for snapshot, _ in processes):
        return None
    found: dict[str, float] = {}
    for _, rates in processes:
        for rate in rates:
            if rate.sender:
                found[_device(rate)] = found.get(_device(rate), 0.0) + rate.bytes_per_second
    return found


def _processors(now: Snapshot, before: Snapshot | None) -> float:
    if before is None:
        return 0.0
    elapsed, used = (
        number(now.process, name) - number(before.process, name) for name in ("published_us", "processor_us")
    )
    return used / elapsed if elapsed > 0 else 0.0


def _groups(rates: list[Rate], around: Surroundings, together: dict[str, float] | None) -> list[_Group]:
    found: dict[tuple[str, bool, str], _Group] = {}
    for rate in sorted(rates, key=lambda each: -each.bytes_per_second):
        shared = None if together is None else together.get(_device(rate), 0.0)
        cause = causes.of(rate, Surroundings(rates, shared, around.processors, around.contended))
        if cause is not None:
            key = causes.host(rate.connection["peer"]), rate.sender, cause.word
            found.setdefault(key, _Group(cause, [])).rates.append(rate)
    return list(found.values())


def _explained(now: Sequence[Snapshot], before: Sequence[Snapshot]) -> list[_Process]:
    earlier = {each.path: each for each in before}
    known = [(snapshot, limits.rates(snapshot, earlier.get(snapshot.path))) for snapshot in now]
    together = _together(known)
    pids = [snapshot.process["pid"] for snapshot in now]
    found = []
    for snapshot, rates in known:
        around = Surroundings(
            processors=_processors(snapshot, earlier.get(snapshot.path)),
            contended=bool(number(snapshot.process, "contended")),
        )
        alone = pids.count(snapshot.process["pid"]) == 1
        found.append(_Process(snapshot, rates, _groups(rates, around, together), alone))
    return found


def _say(text: str, indent: int) -> None:
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _PIPE_WIDTH
    space = " " * indent
    print(textwrap.fill(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False))


def _print(process: _Process) -> None:
    said = connecting.said(process.snapshot)
    print(process.name)
    for group in process.groups:
        count = f"{len(group.rates)} connections, " if len(group.rates) > 1 else ""
        way = "to" if group.sender else "from"
        _say(f"{way} {group.peer} ({count}{causes.size(group.bytes_per_second)}/s): {group.cause.word}", 2)
        for sentence in (group.cause.fact, group.cause.reason, group.cause.action):
            _say(sentence, 4)
    if not any(group.sender for group in process.groups) and process.receives:
        _say(f"It receives {causes.size(process.receives)}/s: the hosts that send know what limits them.", 2)
    elif not process.groups and not said:
        pid = process.snapshot.process["pid"]
        _say(
            f"Nothing has moved meanwhile. If other ranks wait for this one: is it stopped (`ps -o stat= {pid}`: T)?", 2
        )
    if said:
        _say(said[0].upper() + said[1:] + ".", 2)
    if connecting.count(process.snapshot):
        _say("Its log says whom it does not reach; `bagua-net doctor --peers HOST,…` looks at the network between.", 2)
    for what in ("connections", "streams"):
        left_out = number(process.snapshot.process, f"{what}_left_out")
        if left_out:
            _say(f"{left_out} more {what} are not shown.", 2)


def _as_json(process: _Process) -> dict[str, Any]:
    return {
        "pid": process.snapshot.process["pid"],
        **{name: process.snapshot.process.get(name, "") for name in ("rank", "host", "program")},
        "receives_bytes_per_second": process.receives,
        "connecting": connecting.count(process.snapshot),
        "connecting_seconds": connecting.seconds(process.snapshot),
        **{name: number(process.snapshot.process, name) for name in ("connections_left_out", "streams_left_out")},
        "peers": [
            {
                "peer": group.peer,
                "sends": group.sender,
                "connections": len(group.rates),
                "bytes_per_second": group.bytes_per_second,
                "limit": group.cause.word,
                "fact": group.cause.fact,
                "reason": group.cause.reason,
                "action": group.cause.action,
            }
            for group in process.groups
        ],
    }


def _living(pid: int | None) -> list[Snapshot]:
    """Those that live now; with a process id, that one must be among them."""
    found = [snapshot for snapshot in files.read_all(files.directory()) if snapshot.lives]
    if pid is not None and all(each.process["pid"] != pid for each in found):
        print(f"bagua-net: process {pid} shows no connections: `bagua-net top` lists those that do", file=sys.stderr)
        raise typer.Exit(1)
    return found


def register(app: typer.Typer, panel: str) -> None:
    @app.command(rich_help_panel=panel)
    def explain(
        pid: Annotated[
            int | None, typer.Argument(metavar="PID", help="One process; default: all of this user.")
        ] = None,
        seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="How long to look.")] = _SECONDS,
        as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
    ) -> None:
        """Say why the connections of this user's running processes are as slow as they are.

        For each host that a process sends to: what was measured, what follows from it, and what to do.
        """
        before = _living(pid)
        if not before and not as_json:
            print(f"bagua-net: {files.nothing()}", file=sys.stderr)
            raise typer.Exit(1)
        time.sleep(seconds)
        found = [each for each in _explained(_living(pid), before) if pid in (None, each.snapshot.process["pid"])]
        if not found and not as_json:
            print("bagua-net: all processes have ended meanwhile", file=sys.stderr)
            raise typer.Exit(1)
        if as_json:
            json.dump([_as_json(each) for each in found], sys.stdout, indent=2)
            sys.stdout.write("\n")
            return
        for each in found:
            _print(each)
