# SPDX-License-Identifier: MIT
"""``bagua-net top``: the connections of this user's running processes, here or on other hosts."""

from __future__ import annotations

import bisect
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .._stats import causes, connecting, exporters, files, limits
from .._stats.files import Snapshot
from .._stats.lines import ORDERS, Line, Part, chosen, of_processes
from .._stats.operations import Operation
from .._stats.operations import of_processes as operations_of
from . import printing

#: Processes publish twice a second.
_SECONDS = 1.0
_BAR = 8
#: A terminal of 80 columns has no room for all of them.
_ALL_FROM = 110
_COLUMNS = {
    "HOST": "left",
    "PID": "left",
    "RANK": "left",
    "COMM": "left",
    "→": "left",
    "PEER": "left",
    "STREAMS": "left",
    "NOW": "right",
    "█": "left",
    "MEAN": "right",
    "P99": "right",
    "RTT": "right",
    "RETR": "right",
    "LIMIT": "left",
}
_WIDE = ("COMM", "█", "MEAN", "RTT")
_OF_OPERATIONS = {
    "PID": "left",
    "RANK": "left",
    "OPERATION": "left",
    "CALLS": "right",
    "CALLS/S": "right",
    "SIZE": "right",
    "TIME": "right",
    "WAITING": "right",
    "RUNNING": "left",
}
_NO_OPERATIONS = "no process here runs collectives of the torch backend; NCCL does not tell of its own"
#: Where hosts are shown, a rank tells as much.
_WITHOUT_HOSTS = ("PID",)

Order = Enum("Order", {name: name for name in ORDERS}, type=str)  # type: ignore[misc]


# ---- the table ----


def _bar(share: float) -> str:
    filled = round(share * _BAR)
    return "█" * filled + "·" * (_BAR - filled)


def _time(microseconds: float | None) -> str:
    if microseconds == math.inf:
        return "> 4 s"
    if not microseconds:
        return "-"
    return f"{microseconds / 1e6:.3g} s" if microseconds >= 1e6 else f"{microseconds / 1000:.3g} ms"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _rate(bytes_per_second: float | None) -> str:
    return "-" if bytes_per_second is None else f"{causes.size(bytes_per_second)}/s"


def _cells(line: Line, most: float) -> dict[str, str]:
    return {
        "HOST": line.host,
        "PID": line.pid,
        "RANK": line.rank or "-",
        "COMM": line.communicator,
        "→": "→" if line.sends else "←",
        "PEER": line.peer,
        "STREAMS": line.streams,
        "NOW": _rate(line.bytes_per_second),
        "█": _bar(line.bytes_per_second / most if most else 0.0),
        "MEAN": _rate(line.mean),
        "P99": _time(line.p99_us),
        "RTT": _time(line.rtt_us),
        "RETR": _share(line.retransmitted) if line.sends else "",
        "LIMIT": line.limit,
    }


def _cells_of_part(part: Part, sends: bool, most: float) -> dict[str, str]:
    """A stream, below its connection: the ports by which `ss` knows it, and its window."""
    ports = " → ".join(f":{end.rpartition(':')[2]}" for end in (part.local, part.remote))
    return {
        "PEER": f"  {ports}",
        "NOW": _rate(part.bytes_per_second),
        "█": _bar(part.bytes_per_second / most if most else 0.0),
        "RTT": _time(part.rtt_us),
        "RETR": _share(part.retransmitted) if sends else "",
        "LIMIT": "broken" if part.broken else f"window {part.congestion_window}" if sends else "",
    }


def _has_several_communicators(lines: Iterable[Line]) -> bool:
    """In one process."""
    found: dict[tuple[str, str], str] = {}
    return any(line.communicator != found.setdefault((line.host, line.pid), line.communicator) for line in lines)


def _table(lines: list[Line], width: int, streams: bool) -> Table:
    hosts = any(line.host for line in lines)
    left_out = {*(() if width >= _ALL_FROM else (*_WIDE, *(_WITHOUT_HOSTS if hosts else ())))}
    left_out |= set() if hosts else {"HOST"}
    left_out |= set() if _has_several_communicators(lines) else {"COMM"}
    names = [name for name in _COLUMNS if name not in left_out]
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name in names:
        justify = "right" if _COLUMNS[name] == "right" else "left"
        table.add_column(name if name.isascii() else "", justify=justify, no_wrap=name != "PEER")  # type: ignore[arg-type]
    most = max((line.bytes_per_second for line in lines), default=0.0)

    def add(cells: dict[str, str]) -> None:
        table.add_row(*(escape(cells.get(name, "")) for name in names))

    for line in lines:
        add(_cells(line, most))
        for part in line.parts if streams else ():
            add(_cells_of_part(part, line.sends, most))
    return table


def _cells_of_operation(each: Operation) -> tuple[str, ...]:
    calls = f"{each.calls} ({each.failed} failed)" if each.failed else str(each.calls)
    return (
        each.pid,
        each.rank or "-",
        each.name,
        calls,
        f"{each.calls_per_second:.3g}",
        "-" if each.bytes is None else causes.size(each.bytes),
        _time(each.time_us),
        "-" if each.waiting is None else f"{each.waiting:.0%}",
        "" if each.running_us is None else f"for {each.running_us / 1e6:.1f} s",
    )


def _table_of_operations(operations: Iterable[Operation]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name, side in _OF_OPERATIONS.items():
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=True)
    for each in operations:
        table.add_row(*map(escape, _cells_of_operation(each)))
    return table


# ---- where the lines are from ----


@dataclass
class _Source:
    """Between its last look and the one before."""

    look: Callable[[], tuple[Any, list[str]]]
    """What is there now, and sentences about what could not be looked at."""
    compare: Callable[[Any, Any], list[Any]]
    """Lines, or operations."""
    before: Any = None

    def next(self) -> tuple[list[Any], list[str]]:
        now, complaints = self.look()
        lines = self.compare(now, self.before) if self.before is not None else []
        self.before = now
        return lines, complaints


def _snapshots(ended: bool) -> list[Snapshot]:
    return [snapshot for snapshot in files.read_all(files.directory()) if ended or snapshot.lives]


def _unconnected(snapshots: Iterable[Snapshot]) -> list[str]:
    """A sentence for each process that makes connections, or has none."""
    said = ((each, connecting.said(each)) for each in snapshots if each.lives)
    return [f"{files.name_of(each)}: {text}" for each, text in said if text]


def _here(ended: bool, operations: bool) -> _Source:
    def look() -> tuple[dict[Any, Snapshot], list[str]]:
        found = {each.path: each for each in _snapshots(ended)}
        if found and operations and not any(each.operations for each in found.values()):
            return found, [_NO_OPERATIONS]
        return found, _unconnected(found.values()) if found else [files.nothing()]

    lines = operations_of if operations else of_processes
    return _Source(look, lambda now, before: list(lines(now.values(), before)))


def _there(hosts: str) -> _Source:
    names = [each.strip() for each in hosts.split(",") if each.strip()]
    if not names:
        raise typer.BadParameter("--from names no host")
    return _Source(lambda: exporters.look_at(names), exporters.lines)


# ---- the command ----


def _as_json(now: Iterable[Snapshot], before: dict[Any, Snapshot]) -> list[dict[str, Any]]:
    return [
        {
            "process": dict(snapshot.process),
            "lives": snapshot.lives,
            "connections": [
                {
                    **rate.connection,
                    "seconds": rate.seconds,
                    "bytes_per_second": rate.bytes_per_second,
                    "posted": rate.posted,
                    "busy": rate.busy,
                    "rwnd_limited": rate.rwnd,
                    "sndbuf_limited": rate.sndbuf,
                    "limit": rate.limit,
                    "streams": [dict(row) for row in rate.streams],
                }
                for rate in limits.rates(snapshot, before.get(snapshot.path))
            ],
            "operations": [dict(row) for row in snapshot.operations],
        }
        for snapshot in now
    ]


def _dump(ended: bool, interval: float) -> None:
    first = {each.path: each for each in _snapshots(ended)}
    time.sleep(interval)
    json.dump(_as_json(_snapshots(ended), first), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _complain(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(f"bagua-net: {sentence}", file=sys.stderr)


def register(app: typer.Typer, panel: str) -> None:
    @app.command(rich_help_panel=panel)
    def top(
        once: Annotated[bool, typer.Option("--once", help="Print the table once and end, as in a pipe.")] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="JSON instead of a table, once: all that there is.")
        ] = False,
        streams: Annotated[bool, typer.Option("--streams", help="Also show the streams of each connection.")] = False,
        operations: Annotated[
            bool,
            typer.Option("--operations", help="What collectives take instead, where they are the torch backend's."),
        ] = False,
        text: Annotated[
            str, typer.Option("--filter", metavar="TEXT", help="Only lines that have this in one of their words.")
        ] = "",
        order: Annotated[
            Order | None,
            typer.Option(
                "--sort",
                metavar="COLUMN",
                help=f"By one of {', '.join(ORDERS)}: the largest first, but numbers and names.",
            ),
        ] = None,
        hosts: Annotated[
            str, typer.Option("--from", metavar="HOST,…", help="Of other hosts, where `bagua-net export` runs.")
        ] = "",
        ended: Annotated[bool, typer.Option("--ended", help="Also show processes that were killed lately.")] = False,
        interval: Annotated[float, typer.Option("--interval", min=0.6, help="Seconds between two looks.")] = _SECONDS,
    ) -> None:
        """Show what the connections of this user's running processes carry, and what limits each of them.

        NOW is of the last seconds, MEAN since the connection began. 99 of 100 messages were done within P99 after they
        were posted, to the next power of two. RTT is the network's, RETR the share of packets that were sent again.
        LIMIT is what holds a sender back: network,
        receiver, send buffer, processor, or the application, which gives it nothing to send for a part of the time.

        With --operations, SIZE and TIME are of a call of the last seconds, a mean, and WAITING is the part of TIME in
        which nothing moved: other ranks were late, or the network.
        """
        if hosts and (as_json or ended or streams or operations):
            raise typer.BadParameter(
                "exporters have no single streams, operations or ended processes, and no --json: see /metrics"
            )
        if operations and (streams or order):
            raise typer.BadParameter("--operations has no streams and no order")
        if as_json:
            _dump(ended, interval)
            return
        source = _there(hosts) if hosts else _here(ended, operations)
        _, complaints = source.next()
        if not source.before:
            _complain(complaints)
            raise typer.Exit(1)

        def pick(lines: list[Any]) -> list[Any]:
            return chosen(lines, text, "" if operations or order is None else order.value)

        def table(lines: list[Any], width: int) -> Table:
            return _table_of_operations(lines) if operations else _table(lines, width, streams)

        if not once and printing.can_redraw():
            _watch(source, pick, table, interval)
        time.sleep(interval)
        lines, complaints = source.next()
        _complain(complaints)
        if lines and not pick(lines):
            _complain([f"none of {len(lines)} lines has {text!r} in a word"])
        if lines:
            printing.lines(table(pick(lines), printing.console().width))


_Tabulate = Callable[[list[Any], int], Table]


def _fitting(lines: list[Any], table: _Tabulate, width: int, rows: int) -> tuple[Table, int]:
    """As many of the lines as have room, and how many are left. The end of one that is too high is cut off."""
    counts = range(1, min(len(lines), max(rows, 1)) + 1)
    count = bisect.bisect_right(counts, rows, key=lambda number: table(lines[:number], width).row_count)
    count = max(count, min(1, len(lines)))
    return table(lines[:count], width), len(lines) - count


def _watch(source: _Source, pick: Callable[[list[Any]], list[Any]], table: _Tabulate, interval: float) -> None:
    """Until it is interrupted. Complaints stand above the table, since a low terminal does not show its end."""
    console = printing.console()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            lines, complaints = source.next()
            room = console.height - len(complaints) - 2  # a line about what is left, and the table's head
            shown, left = _fitting(pick(lines), table, console.width, room)
            more = [f"lines that have no room here: {left}; --filter and --sort choose"] if left else []
            live.update(Group(*(Text(each) for each in (*complaints, *more)), shown), refresh=True)
