# SPDX-License-Identifier: MIT
"""What `bagua-net top` shows: a line for each connection, from this host's processes or from exporters of others."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from . import causes, limits
from .files import Row, Snapshot
from .limits import Rate, number

#: Of a communicator's number: enough to tell those of a job apart.
_DIGITS = 6
#: A mean over less time says nothing.
_SHORTEST_S = 0.1
#: Of a process that is no more.
ENDED = "has ended"


@dataclass(frozen=True)
class Part:
    """A stream of a connection. Bytes are those that the kernel has seen acknowledged, or has received."""

    local: str
    remote: str
    bytes_per_second: float
    rtt_us: float
    #: of its segments; None: it sent none
    retransmitted: float | None
    congestion_window: int
    broken: bool


@dataclass(frozen=True)
class Line:
    """A connection, or, of an exporter, all connections of a process to a host by a device, in one direction."""

    host: str
    pid: str
    rank: str
    sends: bool
    peer: str
    #: "2/4": used, open
    streams: str
    bytes_per_second: float
    #: since its beginning; None: not known
    mean: float | None
    #: 99 of 100 messages were done in that time; None: none was timed
    p99_us: float | None
    rtt_us: float
    retransmitted: float | None
    limit: str
    #: the end of NCCL's commId, as its log has it; "": not known
    communicator: str = ""
    parts: tuple[Part, ...] = ()

    def has(self, text: str) -> bool:
        """In one of its words."""
        words = (str(getattr(self, field.name)) for field in fields(self) if field.type == "str")
        return any(text.lower() in word.lower() for word in words)


#: What lines can be sorted by: the largest first, but text and numbers of processes.
ORDERS: Mapping[str, Callable[[Line], tuple[float, str]]] = {
    "pid": lambda line: (float(line.pid) if line.pid.isdecimal() else 0.0, line.host),
    "rank": lambda line: (_number(line.rank.partition("/")[0]), line.host),
    "peer": lambda line: _address(line.peer),
    "now": lambda line: (-line.bytes_per_second, ""),
    "mean": lambda line: (-(line.mean or 0.0), ""),
    "p99": lambda line: (-(line.p99_us or 0.0), ""),
    "rtt": lambda line: (-line.rtt_us, ""),
    "retr": lambda line: (-(line.retransmitted or 0.0), ""),
}


def _address(text: str) -> tuple[float, str]:
    try:
        return float(int(ipaddress.ip_address(text.partition("%")[0]))), text
    except ValueError:
        return math.inf, text


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else -1.0


def chosen(lines: Iterable[Line], text: str, order: str) -> list[Line]:
    """Those that have the text, in an order of :data:`ORDERS`; "": as they are."""
    found = [line for line in lines if line.has(text)]
    return sorted(found, key=ORDERS[order]) if order else found


# ---- of this host ----


def rank_of(snapshot: Snapshot) -> str:
    """Of how many, as far as the launcher says so: "0/2"."""
    rank, size = (str(snapshot.process.get(name, "")) for name in ("rank", "world_size"))
    return f"{rank}/{size}" if rank and size else rank


def _part(row: Row, before: Row | None, seconds: float) -> Part:
    def since(name: str) -> int:
        return max(0, number(row, name) - number(before, name))

    moved = since("bytes_acked") if number(row, "sender") else since("bytes_received")
    segments = since("segments_sent")
    return Part(
        str(row.get("local", "")),
        str(row.get("remote", "")),
        moved / seconds if seconds else 0.0,
        number(row, "rtt_us"),
        since("retransmits") / segments if segments and number(row, "sender") else None,
        number(row, "congestion_window"),
        bool(number(row, "broken")),
    )


def _line(snapshot: Snapshot, recent: Rate, whole: Rate, before: Iterable[Row]) -> Line:
    """before: the connection's streams at the first look."""
    connection = recent.connection
    level, streams = connection["level"], connection["streams"]
    earlier = {row["serial"]: row for row in before}
    return Line(
        host="",
        pid=str(snapshot.process["pid"]),
        rank=rank_of(snapshot),
        sends=recent.sender,
        peer=causes.host(connection["peer"]),
        streams=f"{level}/{streams}" if recent.sender else str(streams),
        bytes_per_second=recent.bytes_per_second,
        mean=whole.bytes_per_second if whole.seconds >= _SHORTEST_S else None,
        p99_us=recent.latency_us(0.99),
        rtt_us=recent.mean("rtt_us"),
        retransmitted=recent.retransmitted if recent.sender and recent.segments else None,
        limit=recent.limit if snapshot.lives else ENDED,
        communicator=f"{number(connection, 'communicator'):x}"[-_DIGITS:] if connection.get("communicator") else "",
        parts=tuple(_part(row, earlier.get(row["serial"]), recent.seconds) for row in recent.streams),
    )


def of_processes(now: Iterable[Snapshot], before: Mapping[Path, Snapshot]) -> list[Line]:
    """Between two looks at each process; of one that was not there at the first, since its connections began."""
    return [line for snapshot in now for line in _of_process(snapshot, before.get(snapshot.path))]


def _of_process(now: Snapshot, before: Snapshot | None) -> Iterator[Line]:
    streams = limits.by_connection(before.streams if before is not None else ())
    for recent, whole in zip(limits.rates(now, before), limits.rates(now), strict=True):
        key = recent.connection["id"], recent.connection["sender"]
        yield _line(now, recent, whole, streams.get(key, ()))
