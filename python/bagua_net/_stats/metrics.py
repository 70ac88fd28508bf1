# SPDX-License-Identifier: MIT
"""What running processes show, as Prometheus metrics.

Labels are bounded by what runs: a process, the addresses of its peers, and its devices. Counters do not fall while
their process lives: what connections and streams had counted that have ended since the last look is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from . import causes, limits
from .files import Row, Snapshot
from .limits import Rate, number

#: The words that NCCL's Inspector has for the same: node, slurm_job_id, nranks.
_INFO = {
    "node": "host",
    "slurm_job_id": "job",
    "rank": "rank",
    "nranks": "world_size",
    "local_rank": "local_rank",
    "program": "program",
    "version": "version",
}
_OF_PROCESS = ("pid", "rank")
_OF_PEER = (*_OF_PROCESS, "peer", "device")
_OF_TIME = (*_OF_PEER, "direction")
_US = 1e-6

#: name, help, field of the process's row, unit
_PROCESS_COUNTERS = (
    ("bagua_net_sent_bytes", "payload that all connections of the process have sent", "bytes_sent", 1),
    ("bagua_net_received_bytes", "payload that all connections of the process have received", "bytes_received", 1),
    ("bagua_net_processor_seconds", "of all threads of the process", "processor_us", _US),
    ("bagua_net_stream_repairs", "streams that took the place of broken ones", "repairs", 1),
    ("bagua_net_unverified_frames", "frames that did not verify, or failed their checksum", "unverified", 1),
    ("bagua_net_events_dropped", "events of `bagua-net trace` that found no room", "events_dropped", 1),
    ("bagua_net_rejected_connections", "connections of others that were refused", "rejected", 1),
)
#: … of a connection's row
_PEER_COUNTERS = (
    ("bagua_net_peer_sent_bytes", "payload that was sent to the peer", "bytes_sent", 1),
    ("bagua_net_peer_received_bytes", "payload that was received from the peer", "bytes_received", 1),
    ("bagua_net_peer_sent_messages", "messages that were sent", "messages_sent", 1),
    ("bagua_net_peer_received_messages", "messages that were received", "messages_received", 1),
)
#: … of a stream's
_STREAM_COUNTERS = (
    ("bagua_net_peer_sent_segments", "TCP segments with data", "segments_sent", 1),
    ("bagua_net_peer_retransmitted_segments", "TCP segments that were sent again", "retransmits", 1),
    ("bagua_net_peer_busy_seconds", "in which a stream had bytes in flight, all streams together", "busy_us", _US),
    ("bagua_net_peer_window_limited_seconds", "… of it, limited by the peer's window", "rwnd_limited_us", _US),
    ("bagua_net_peer_buffer_limited_seconds", "… of it, limited by the send buffer", "sndbuf_limited_us", _US),
)
#: … of operations of one kind
_OPERATION_COUNTERS = (
    ("bagua_net_operations", "collectives of the process that are over", "calls", 1),
    ("bagua_net_failed_operations", "collectives that failed", "failed", 1),
    ("bagua_net_operation_bytes", "of their buffers", "bytes", 1),
    ("bagua_net_operation_seconds", "that they took", "time_us", _US),
    ("bagua_net_operation_waiting_seconds", "… of it, in which nothing moved", "waiting_us", _US),
)
_LATENCY = "bagua_net_message_seconds"
_PUBLISHED = "bagua_net_published_timestamp_seconds"

#: Looks at which a row, or a process, was not there, before it counts as ended.
_MISSED = 10
#: What holds a connection back is judged over so long, however often it is asked.
_JUDGED_US = 1_500_000
#: A process that publishes nothing for so long has nothing to do: one that moves publishes each second.
_QUIET_S = 5.0

Labels = tuple[str, ...]


@dataclass
class _Row:
    labels: Labels
    counts: list[int]
    missed: int = 0


@dataclass
class _Sums:
    """Of rows that come and go: what those have counted that are gone stays. A row may be unreadable at one look, and
    come back."""

    fields: tuple[str, ...]
    rows: dict[Hashable, _Row] = field(default_factory=dict)
    ended: dict[Labels, list[int]] = field(default_factory=dict)

    def take(self, rows: Iterable[tuple[Hashable, Labels, Row]]) -> dict[Labels, list[int]]:
        for each in self.rows.values():
            each.missed += 1
        for key, labels, row in rows:
            self.rows[key] = _Row(labels, [number(row, name) for name in self.fields])
        for key in [key for key, each in self.rows.items() if each.missed > _MISSED]:
            gone = self.rows.pop(key)
            _add(self.ended, gone.labels, gone.counts)
        sums = {labels: list(counts) for labels, counts in self.ended.items()}
        for each in self.rows.values():
            _add(sums, each.labels, each.counts)
        return sums


def _add_all(sums: dict[Labels, list[int]], more: dict[Labels, list[int]]) -> None:
    for labels, counts in more.items():
        _add(sums, labels, counts)


def _add(sums: dict[Labels, list[int]], labels: Labels, counts: list[int]) -> None:
    sums[labels] = [a + b for a, b in zip(sums.get(labels, [0] * len(counts)), counts, strict=True)]


_LATENCIES = (*(f"latency_{power}" for power in range(limits.LATENCIES)), "latency_us")
_OF_DIRECTION = (*_LATENCIES, "posted_us")


@dataclass
class _Known:
    """Of a process, between two looks."""

    #: from which on it is judged
    since: Snapshot
    #: since the one before; none at first
    rates: list[Rate] = field(default_factory=list)
    #: when it has published, and when that was seen
    published_us: int = 0
    seen_s: float = 0.0
    missed: int = 0
    connections: _Sums = field(default_factory=lambda: _Sums(tuple(name for _, _, name, _ in _PEER_COUNTERS)))
    directions: _Sums = field(default_factory=lambda: _Sums(_OF_DIRECTION))
    streams: _Sums = field(default_factory=lambda: _Sums(tuple(name for _, _, name, _ in _STREAM_COUNTERS)))

    def judge(self, now: Snapshot, now_s: float) -> None:
        self.missed = 0
        published_us = number(now.process, "published_us")
        if published_us != self.published_us:
            self.published_us, self.seen_s = published_us, now_s
        if published_us - number(self.since.process, "published_us") >= _JUDGED_US:
            self.rates, self.since = limits.rates(now, self.since), now
        elif now_s - self.seen_s >= _QUIET_S:
            self.rates, self.since = limits.rates(now, now), now


def _of_process(snapshot: Snapshot) -> Labels:
    return tuple(str(snapshot.process.get(name, "")) for name in _OF_PROCESS)


def _of_peer(snapshot: Snapshot, connection: Row) -> Labels:
    return (*_of_process(snapshot), causes.host(connection["peer"]), str(connection.get("device", "")))


def _key(row: Row, name: str) -> tuple[int, int]:
    return number(row, name), number(row, "sender")


def _direction(connection: Row) -> str:
    return "send" if number(connection, "sender") else "receive"


class Metrics(Collector):
    """A collector for a registry of prometheus_client.

    Args:
        read: the processes that live now.
        clock: seconds.
    """

    def __init__(self, read: Callable[[], Sequence[Snapshot]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._known: dict[Path, _Known] = {}
        self._one_at_a_time = Lock()

    def collect(self) -> list[Metric]:
        with self._one_at_a_time:
            return list(self._look())

    def _look(self) -> Iterator[Metric]:
        now = [snapshot for snapshot in self._read() if snapshot.lives]
        for known in self._known.values():
            known.missed += 1
        for each in now:
            self._known.setdefault(each.path, _Known(each)).judge(each, self._clock())
        self._known = {path: known for path, known in self._known.items() if known.missed <= _MISSED}
        yield from _processes(now)
        yield from _operations(now)
        yield from self._counters(now)
        yield from _peers(now)
        yield _limits([(each, self._known[each.path].rates) for each in now])

    def _counters(self, now: Sequence[Snapshot]) -> Iterator[Metric]:
        of_peers: dict[Labels, list[int]] = {}
        of_streams: dict[Labels, list[int]] = {}
        times: dict[Labels, list[int]] = {}
        for each in now:
            known = self._known[each.path]
            labels = {_key(row, "id"): _of_peer(each, row) for row in each.connections}
            rows = [(_key(row, "id"), labels[_key(row, "id")], row) for row in each.connections]
            streams = [
                ((*_key(row, "connection"), number(row, "serial")), labels[_key(row, "connection")], row)
                for row in each.streams
                if _key(row, "connection") in labels
            ]
            _add_all(of_peers, known.connections.take(rows))
            _add_all(times, known.directions.take((key, (*peer, _direction(row)), row) for key, peer, row in rows))
            _add_all(of_streams, known.streams.take(streams))
        yield from _counters(_PEER_COUNTERS, of_peers)
        yield from _counters(_STREAM_COUNTERS, of_streams)
        yield from _of_directions(times)


def _counters(table: Iterable[tuple[str, str, str, float]], sums: dict[Labels, list[int]]) -> Iterator[Metric]:
    for place, (name, text, _, unit) in enumerate(table):
        metric = CounterMetricFamily(name, text, labels=_OF_PEER)
        for labels, counts in sums.items():
            metric.add_metric(labels, counts[place] * unit)
        yield metric


def _of_directions(sums: dict[Labels, list[int]]) -> Iterator[Metric]:
    metric = HistogramMetricFamily(
        _LATENCY, "from the post of a message until it was done, of one of four messages", labels=_OF_TIME
    )
    posted = CounterMetricFamily(
        "bagua_net_peer_posted_seconds", "in which something was posted, all connections together", labels=_OF_TIME
    )
    for labels, (*counts, sum_us, posted_us) in sums.items():
        posted.add_metric(labels, posted_us * _US)
        buckets, seen = [], 0
        for power, count in enumerate(counts):
            seen += count
            buckets.append(("+Inf" if power == len(counts) - 1 else str((1 << power) * _US), seen))
        metric.add_metric(labels, buckets, sum_value=sum_us * _US)
    yield from (metric, posted)


def _processes(now: Sequence[Snapshot]) -> Iterator[Metric]:
    """Containers that share a directory may have processes of one number: their sums."""
    info = InfoMetricFamily("bagua_net_process", "a process that has loaded the plugin", labels=("pid",))
    of = {_of_process(each): each for each in now}
    for (pid, _), each in of.items():
        info.add_metric((pid,), {name: str(each.process.get(source, "")) for name, source in _INFO.items()})
    yield info
    for family, name, text, source, unit in (
        *((CounterMetricFamily, *each) for each in _PROCESS_COUNTERS),
        (GaugeMetricFamily, "bagua_net_connections_left_out", "connections not shown", "connections_left_out", 1),
        (GaugeMetricFamily, "bagua_net_streams_left_out", "streams not shown", "streams_left_out", 1),
        (GaugeMetricFamily, "bagua_net_connecting", "connections that are being made", "connecting", 1),
        (GaugeMetricFamily, _PUBLISHED, "when the process has published these figures", "published_us", _US),
    ):
        metric = family(name, text, labels=_OF_PROCESS)
        for labels in of:
            values = [number(each.process, source) for each in now if _of_process(each) == labels]
            metric.add_metric(labels, (max(values) if name == _PUBLISHED else sum(values)) * unit)
        yield metric


def _operations(now: Sequence[Snapshot]) -> Iterator[Metric]:
    of: dict[Labels, list[Row]] = {}
    for each in now:
        for row in each.operations:
            of.setdefault((*_of_process(each), str(row["operation"])), []).append(row)
    for family, name, text, source, unit in (
        *((CounterMetricFamily, *each) for each in _OPERATION_COUNTERS),
        (GaugeMetricFamily, "bagua_net_running_operations", "collectives that run now", "running", 1),
    ):
        metric = family(name, text, labels=(*_OF_PROCESS, "operation"))
        for labels, rows in of.items():
            metric.add_metric(labels, sum(number(row, source) for row in rows) * unit)
        yield metric


def _peers(now: Sequence[Snapshot]) -> Iterator[Metric]:
    connections = GaugeMetricFamily("bagua_net_peer_connections", "connections now", labels=_OF_TIME)
    streams = GaugeMetricFamily("bagua_net_peer_streams", "TCP streams now", labels=_OF_TIME)
    still = GaugeMetricFamily(
        "bagua_net_peer_still_connections",
        "connections on which messages are posted and nothing has moved for two seconds",
        labels=_OF_TIME,
    )
    round_trip = GaugeMetricFamily("bagua_net_peer_round_trip_seconds", "a mean over the streams", labels=_OF_PEER)
    grouped: dict[Labels, list[Rate]] = {}
    for snapshot in now:
        for rate in limits.rates(snapshot):
            grouped.setdefault(_of_peer(snapshot, rate.connection), []).append(rate)
    for labels, group in grouped.items():
        for direction, some in (
            ("send", [each for each in group if each.sender]),
            ("receive", [each for each in group if not each.sender]),
        ):
            connections.add_metric((*labels, direction), len(some))
            still.add_metric((*labels, direction), sum(each.limit == limits.STILL for each in some))
            streams.add_metric((*labels, direction), sum(number(each.connection, "streams") for each in some))
        times = [each.mean("rtt_us") for each in group if each.sender and each.mean("rtt_us")]
        if times:
            round_trip.add_metric(labels, sum(times) / len(times) * _US)
    yield from (connections, streams, still, round_trip)


def _limits(judged: Sequence[tuple[Snapshot, list[Rate]]]) -> Metric:
    metric = GaugeMetricFamily(
        "bagua_net_peer_limit", "sending connections that this held back lately", labels=(*_OF_PEER, "limit")
    )
    counts: dict[Labels, int] = {}
    for snapshot, rates in judged:
        for rate in rates:
            for word in limits.ALL if rate.sender else ():
                labels = (*_of_peer(snapshot, rate.connection), word)
                counts[labels] = counts.get(labels, 0) + (rate.limit == word)
    for labels, count in counts.items():
        metric.add_metric(labels, count)
    return metric
