# SPDX-License-Identifier: MIT
"""What holds a connection back, from the counts at two times.

The kernel counts for each socket the time in which bytes were in flight, and of it what was limited by the peer's
window and by the send buffer (``tcpi_busy_time``, ``tcpi_rwnd_limited``, ``tcpi_sndbuf_limited``). The library counts
the time in which messages were posted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .files import Row, Snapshot

#: Shares of time, from which on something is the limit. A job that posts without a pause has something posted for
#: nearly all of the time, and one that computes in between for a part.
_POSTED = 0.7
_BUSY = 0.7
#: Of that: a window that is shut also fills the send buffer, and leaves the rest of the time to what it let through.
_OF_BUSY_RWND = 0.25
_OF_BUSY_SNDBUF = 0.5
#: Nothing has moved for so long although something is posted.
_STILL_US = 2_000_000

IDLE = "idle"
STILL = "stands still"
APPLICATION = "application"
RECEIVER = "receiver"
SEND_BUFFER = "send buffer"
NETWORK = "network"
PROCESSOR = "processor"
FAILED = "failed"
ALL = (IDLE, STILL, APPLICATION, RECEIVER, SEND_BUFFER, NETWORK, PROCESSOR, FAILED)


@dataclass(frozen=True)
class Rate:
    """A connection over an interval, or since its beginning."""

    connection: Row
    streams: tuple[Row, ...]
    seconds: float
    #: payload
    bytes: int
    #: of the interval: messages were posted
    posted: float
    #: of the streams' time: bytes were in flight
    busy: float
    #: of that: limited by the peer's window, and by the send buffer
    rwnd: float
    sndbuf: float
    segments: int
    retransmits: int
    limit: str

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


def _number(row: Row | None, name: str) -> int:
    value = row.get(name, 0) if row is not None else 0
    return value if isinstance(value, int) else 0


def _since(now: Row, before: Row | None, name: str) -> int:
    return max(0, _number(now, name) - _number(before, name))


def _matching(rows: Sequence[Row], *key: str) -> dict[tuple[int | str, ...], Row]:
    return {tuple(row.get(name, 0) for name in key): row for row in rows}


def _is_local(streams: Sequence[Row]) -> bool:
    """Both ends have the same address: what is slow there is this machine."""
    return any(str(row["local"]).rpartition(":")[0] == str(row["remote"]).rpartition(":")[0] for row in streams)


def _limit(connection: Row, local: bool, moved: int, posted: float, busy: float, rwnd: float, sndbuf: float) -> str:
    if _number(connection, "error"):
        return FAILED
    if _number(connection, "outstanding") and _number(connection, "still_us") >= _STILL_US:
        return STILL
    if not moved:
        return IDLE
    if posted < _POSTED:
        return APPLICATION
    if rwnd >= _OF_BUSY_RWND:
        return RECEIVER
    if sndbuf >= _OF_BUSY_SNDBUF:
        return SEND_BUFFER
    return NETWORK if busy >= _BUSY and not local else PROCESSOR


def _rate(connection: Row, before: Row | None, streams: Sequence[Row], old: Sequence[Row], seconds: float) -> Rate:
    sender = bool(_number(connection, "sender"))
    earlier = _matching(old, "connection", "serial")
    pairs = [(row, earlier.get((row["connection"], row["serial"]))) for row in streams]
    busy, rwnd, sndbuf = (
        sum(_since(row, was, name) for row, was in pairs)
        for name in ("busy_us", "rwnd_limited_us", "sndbuf_limited_us")
    )
    moved = _since(connection, before, "bytes_sent" if sender else "bytes_received")
    counted = max(1, _number(connection, "level") if sender else len(streams))
    shares = {
        "posted": _since(connection, before, "posted_us") / 1e6 / seconds if seconds else 0.0,
        "busy": busy / 1e6 / seconds / counted if seconds else 0.0,
        "rwnd": rwnd / busy if busy else 0.0,
        "sndbuf": sndbuf / busy if busy else 0.0,
    }
    return Rate(
        connection,
        tuple(streams),
        seconds,
        moved,
        **shares,
        segments=sum(_since(row, was, "segments_sent") for row, was in pairs),
        retransmits=sum(_since(row, was, "retransmits") for row, was in pairs),
        limit=_limit(connection, _is_local(streams), moved, **shares) if sender else "",
    )


def rates(now: Snapshot, before: Snapshot | None = None) -> list[Rate]:
    """Of all connections, between the two snapshots of one process, or since each began."""
    earlier = _matching(before.connections if before else (), "id", "sender")
    found = []
    for connection in now.connections:
        was = earlier.get((connection["id"], connection["sender"]))
        since = _number(was, "published_us") if was else _number(connection, "opened_us")
        own, old = (
            [
                row
                for row in rows
                if all(row[a] == connection[b] for a, b in (("connection", "id"), ("sender", "sender")))
            ]
            for rows in (now.streams, before.streams if before and was else ())
        )
        found.append(_rate(connection, was, own, old, max(0, _number(connection, "published_us") - since) / 1e6))
    return found
