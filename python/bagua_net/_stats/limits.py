# SPDX-License-Identifier: MIT
"""What holds a connection back, from the counts at two times.

The kernel counts for each socket the time in which bytes were in flight, and of it what was limited by the peer's
window and by the send buffer (``tcpi_busy_time``, ``tcpi_rwnd_limited``, ``tcpi_sndbuf_limited``). The library counts
the time in which messages were posted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .files import Row, Snapshot

#: Shares of time, from which on something is the limit. A job that posts without a pause has something posted for
#: nearly all of the time, and one that computes in between for a part. A message is done when a copy is kept of it
#: (plugin/transport/retention.c), so where a rank waits for the answer to each of them, little is posted although the
#: network has bytes to carry all the time.
_POSTED = 0.5
#: Of the time in which something is posted: bytes are on the way.
_BUSY = 0.7
#: Of that: a window that is shut also fills the send buffer, and leaves the rest of the time to what it let through.
_OF_BUSY_RWND = 0.25
_OF_BUSY_SNDBUF = 0.5
#: Nothing has moved for so long although something is posted.
_STILL_US = 2_000_000
#: A device that carries this share of its speed is full: the rest is headers and acknowledgements.
_FULL = 0.85
#: One that carries more than its speed is not bound by it, as virtual ones, which name any.
_MOST = 1.05
#: Segments sent again, where hardly anything queues. One stream carries 56 MB/s then over a millisecond (Mathis et al.,
#: "The macroscopic behavior of the TCP congestion avoidance algorithm", 1997).
_LOSSES = 0.001
#: Round trips are so much longer than the shortest one where bytes queue on the way. Between two virtual cards that
#: lose packets, and hold none, they are up to 0.9 ms longer.
_QUEUED_TIMES = 1.3
_QUEUED_US = 1000
#: Segments of a stream in flight, on average, from which on a long round trip is a queue: one or two may wait for an
#: acknowledgement that the peer delays. As many as a stream begins with (RFC 6928).
_SEGMENTS = 10

LATENCIES = 24

IDLE = "idle"
STILL = "stands still"
APPLICATION = "application"
RECEIVER = "receiver"
SEND_BUFFER = "send buffer"
NETWORK = "network"
PROCESSOR = "processor"
UNKNOWN = "not known"
FAILED = "failed"
ALL = (IDLE, STILL, APPLICATION, RECEIVER, SEND_BUFFER, NETWORK, PROCESSOR, UNKNOWN, FAILED)


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
    #: … of the time of the one that had most
    busiest: float
    #: of that: limited by the peer's window, and by the send buffer
    rwnd: float
    sndbuf: float
    segments: int
    retransmits: int
    #: of its device, for all who use it; 0: not known
    device_bytes_per_second: float
    #: messages that took less than 2^i µs, for each i; those that were timed
    latencies: tuple[int, ...]

    @property
    def sender(self) -> bool:
        return bool(number(self.connection, "sender"))

    @property
    def limit(self) -> str:
        """One of ALL. Empty: it receives, and its sender knows."""
        if number(self.connection, "error"):
            return FAILED
        if number(self.connection, "outstanding") and number(self.connection, "still_us") >= _STILL_US:
            return STILL
        return _limit_of_sender(self) if self.sender else ""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def retransmitted(self) -> float:
        """The share of its segments."""
        return self.retransmits / self.segments if self.segments else 0.0

    @property
    def shortest_us(self) -> int:
        """The shortest round trip; 0: not known."""
        return min((number(row, "min_rtt_us") for row in self.streams if number(row, "min_rtt_us")), default=0)

    @property
    def queues(self) -> bool:
        """Bytes queue on the way."""
        return self.mean("rtt_us") >= max(self.shortest_us * _QUEUED_TIMES, self.shortest_us + _QUEUED_US)

    @property
    def loses(self) -> bool:
        """Packets are lost on the way, although hardly anything queues there."""
        return self.retransmitted >= _LOSSES and not self.queues

    @property
    def fills_device(self) -> bool:
        speed = number(self.connection, "device_mbps") * 125_000
        return _FULL * speed <= self.device_bytes_per_second <= _MOST * speed if speed else False

    def latency_us(self, share: float) -> float | None:
        """At most so long took this share of the messages, to the next power of two; None: none was timed. Infinite
        beyond the last power."""
        wanted = share * sum(self.latencies)
        seen = 0
        for power, count in enumerate(self.latencies):
            seen += count
            if count and seen >= wanted:
                return math.inf if power == LATENCIES - 1 else 1 << power
        return None

    def mean(self, name: str) -> float:
        """Of what its streams have of it, those that have none left out."""
        values = [value for value in (number(row, name) for row in self.streams) if value]
        return sum(values) / len(values) if values else 0.0


def number(row: Row | None, name: str) -> int:
    """The field of a row; 0 if the row lacks it, as those of earlier versions may."""
    value = row.get(name, 0) if row is not None else 0
    return value if isinstance(value, int) else 0


def _since(now: Row, before: Row | None, name: str) -> int:
    return max(0, number(now, name) - number(before, name))


def _matching(rows: Sequence[Row], *key: str) -> dict[tuple[int | str, ...], Row]:
    return {tuple(row.get(name, 0) for name in key): row for row in rows}


def by_connection(streams: Iterable[Row]) -> dict[tuple[int | str, int | str], list[Row]]:
    """Streams by their connection's id, and whether it sends."""
    found: dict[tuple[int | str, int | str], list[Row]] = {}
    for row in streams:
        found.setdefault((row["connection"], row["sender"]), []).append(row)
    return found


def _is_local(connection: Row, streams: Sequence[Row]) -> bool:
    """Both ends are on one machine: what is slow there is this machine."""
    if number(connection, "local_peer"):
        return True
    ends = [[str(row.get(end, "")).rpartition(":")[0] for end in ("local", "remote")] for row in streams]
    return any(local == remote != "" for local, remote in ends)


def _network_has_bytes(rate: Rate) -> bool:
    """For half of the time, and something shows that it is the network that keeps them."""
    round_trip_s = rate.mean("rtt_us") / 1e6
    used = min(number(rate.connection, "level"), len(rate.streams))
    in_flight = rate.bytes_per_second * round_trip_s / max(1, used)
    queued = rate.queues and in_flight >= _SEGMENTS * rate.mean("segment") > 0
    return rate.busiest >= _POSTED and (rate.fills_device or rate.loses or queued)


def _limit_of_sender(rate: Rate) -> str:
    if not rate.bytes:
        return IDLE
    local = _is_local(rate.connection, rate.streams)
    if rate.posted < _POSTED and (local or not _network_has_bytes(rate)):
        return APPLICATION
    if not rate.streams:
        return UNKNOWN  # the process has no row left for any of them
    if rate.rwnd >= _OF_BUSY_RWND:
        return RECEIVER
    if rate.sndbuf >= _OF_BUSY_SNDBUF:
        return SEND_BUFFER
    return NETWORK if rate.busy >= _BUSY * min(rate.posted, 1) and not local else PROCESSOR


def _device_rate(connection: Row, before: Row | None, sender: bool) -> float:
    name = "device_sent" if sender else "device_received"
    elapsed_us = _since(connection, before, "device_us")
    return _since(connection, before, name) * 1e6 / elapsed_us if number(before, name) and elapsed_us else 0.0


def _rate(connection: Row, before: Row | None, streams: Sequence[Row], old: Sequence[Row], seconds: float) -> Rate:
    sender = bool(number(connection, "sender"))
    earlier = _matching(old, "connection", "serial")
    pairs = [(row, earlier.get((row["connection"], row["serial"]))) for row in streams]
    busy, rwnd, sndbuf = (
        sum(_since(row, was, name) for row, was in pairs)
        for name in ("busy_us", "rwnd_limited_us", "sndbuf_limited_us")
    )
    moved = _since(connection, before, "bytes_sent" if sender else "bytes_received")
    counted = max(1, min(number(connection, "level"), len(streams)) if sender else len(streams))
    busiest = max((_since(row, was, "busy_us") for row, was in pairs), default=0)
    return Rate(
        connection,
        tuple(streams),
        seconds,
        moved,
        posted=_since(connection, before, "posted_us") / 1e6 / seconds if seconds else 0.0,
        busy=busy / 1e6 / seconds / counted if seconds else 0.0,
        busiest=busiest / 1e6 / seconds if seconds else 0.0,
        rwnd=rwnd / busy if busy else 0.0,
        sndbuf=sndbuf / busy if busy else 0.0,
        segments=sum(_since(row, was, "segments_sent") for row, was in pairs),
        retransmits=sum(_since(row, was, "retransmits") for row, was in pairs),
        device_bytes_per_second=_device_rate(connection, before, sender),
        latencies=tuple(_since(connection, before, f"latency_{power}") for power in range(LATENCIES)),
    )


def rates(now: Snapshot, before: Snapshot | None = None) -> list[Rate]:
    """Of all connections, between the two snapshots of one process, or since each began."""
    earlier = _matching(before.connections if before else (), "id", "sender")
    streams, streams_before = (by_connection(each.streams if each else ()) for each in (now, before))
    found = []
    for connection in now.connections:
        key = connection["id"], connection["sender"]
        was = earlier.get(key)
        since = number(was, "published_us") if was else number(connection, "opened_us")
        own, old = streams.get(key, []), streams_before.get(key, []) if was else []
        found.append(_rate(connection, was, own, old, max(0, number(connection, "published_us") - since) / 1e6))
    return found
