# SPDX-License-Identifier: MIT
"""``bagua-net top``: the connections of this user's running processes."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from .._stats import causes, files, limits
from .._stats.files import Snapshot
from .._stats.limits import Rate

#: Processes publish twice a second.
_SECONDS = 1.0
_BAR = 8
#: A terminal of 80 columns has no room for all of them.
_ALL_FROM = 110
_PIPE_WIDTH = 1000


def _text(row: files.Row, name: str) -> str:
    return str(row.get(name, ""))


def _rank(snapshot: Snapshot) -> str:
    rank, size = (_text(snapshot.process, name) for name in ("rank", "world_size"))
    return f"{rank}/{size}" if rank and size else rank or "-"


def _bar(share: float) -> str:
    filled = round(share * _BAR)
    return "█" * filled + "·" * (_BAR - filled)


def _retransmits(rate: Rate) -> str:
    return f"{rate.retransmitted:.2%}" if rate.segments else "-"


def _round_trip(rate: Rate) -> str:
    return _time(rate.mean("rtt_us"))


def _time(microseconds: float | None) -> str:
    if microseconds == math.inf:
        return "> 4 s"
    return f"{microseconds / 1000:.3g} ms" if microseconds else "-"


class _Columns:
    """Their names, and which of them there is room for."""

    def __init__(self, width: int) -> None:
        every = {"PID": "left", "RANK": "left", "→": "left", "PEER": "left", "STREAMS": "left", "NOW": "right"}
        every |= {"█": "left", "MEAN": "right", "P99": "right", "RTT": "right", "RETR": "right", "LIMIT": "left"}
        left_out = set() if width >= _ALL_FROM else {"█", "MEAN", "RTT"}
        self.names = [name for name in every if name not in left_out]
        self.table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
        for name in self.names:
            self.table.add_column(
                name if name.isascii() else "",
                justify="right" if every[name] == "right" else "left",
                no_wrap=name != "PEER",
            )

    def add(self, **texts: str) -> None:
        self.table.add_row(*(texts[name] for name in self.names))


def _table(now: Iterable[Snapshot], before: dict[Any, Snapshot], width: int) -> Table:
    columns = _Columns(width)
    rows = [
        (snapshot, recent, whole)
        for snapshot in now
        for recent, whole in zip(limits.rates(snapshot, before.get(snapshot.path)), limits.rates(snapshot), strict=True)
    ]
    most = max((recent.bytes_per_second for _, recent, _ in rows), default=0.0)
    for snapshot, recent, whole in rows:
        connection = recent.connection
        sender = bool(connection["sender"])
        columns.add(
            **{
                "PID": str(snapshot.process["pid"]),
                "RANK": escape(_rank(snapshot)),
                "→": "→" if sender else "←",
                "PEER": escape(causes.host(connection["peer"])),
                "STREAMS": f"{connection['level']}/{connection['streams']}" if sender else str(connection["streams"]),
                "NOW": f"{causes.size(recent.bytes_per_second)}/s",
                "█": _bar(recent.bytes_per_second / most if most else 0.0),
                "MEAN": f"{causes.size(whole.bytes_per_second)}/s",
                "P99": _time(recent.latency_us(0.99)),
                "RTT": _round_trip(recent),
                "RETR": _retransmits(recent) if sender else "",
                "LIMIT": recent.limit if snapshot.lives else "has ended",
            }
        )
    return columns.table


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
        }
        for snapshot in now
    ]


def _snapshots(ended: bool) -> list[Snapshot]:
    return [snapshot for snapshot in files.read_all(files.directory()) if ended or snapshot.lives]


def register(app: typer.Typer, panel: str) -> None:
    @app.command(rich_help_panel=panel)
    def top(
        once: Annotated[bool, typer.Option("--once", help="Print the table once and end.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table, once.")] = False,
        ended: Annotated[bool, typer.Option("--ended", help="Also show processes that were killed lately.")] = False,
        interval: Annotated[float, typer.Option("--interval", min=0.6, help="Seconds between two looks.")] = _SECONDS,
    ) -> None:
        """Show what the connections of this user's running processes carry, and what limits each of them.

        NOW is of the last seconds, MEAN since the connection began. 99 of 100 messages were done within P99 after they
        were posted, to the next power of two. RTT is the network's, RETR the share of packets that were sent again.
        LIMIT is what holds a sender back: network,
        receiver, send buffer, processor, or the application, which gives it nothing to send for a part of the time.
        """
        first = {each.path: each for each in _snapshots(ended)}
        if not first and not as_json:
            print(f"bagua-net: {files.NOTHING}", file=sys.stderr)
            raise typer.Exit(1)
        if once or as_json:
            time.sleep(interval)
            now = _snapshots(ended)
            if as_json:
                json.dump(_as_json(now, first), sys.stdout, indent=2)
                sys.stdout.write("\n")
            else:
                _print(now, first)
            return
        _watch(first, ended, interval)


def _print(now: Iterable[Snapshot], before: dict[Any, Snapshot]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(_table(now, before, console.width))
    for line in capture.get().splitlines():
        print(line.rstrip())


def _watch(before: dict[Any, Snapshot], ended: bool, interval: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(interval)
            now = _snapshots(ended)
            live.update(_table(now, before, console.width), refresh=True)
            before = {each.path: each for each in now}
