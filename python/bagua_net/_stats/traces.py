# SPDX-License-Identifier: MIT
"""Recordings of running processes (plugin/stats/trace.h), and their form for Perfetto and chrome://tracing.

A track for each stream has its slices, from the first byte that was written or read to the last. Above them are the
messages of their connection, from the post until they were done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import BaguaNetError
from . import causes
from .files import Row, Snapshot
from .limits import number

_MAGIC = b"BNETTRAC"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQQQQ")
_EVENT = struct.Struct("<QQQQQIHH")
_SLICE, _MESSAGE = 1, 2
_POLL_S = 0.05
#: A process looks twice a second whether somebody asks, and then writes.
_PATIENCE_S = 10.0
#: As the library has it.
MOST_SECONDS = 60


class NoTrace(BaguaNetError):
    """The process records nothing."""


@dataclass(frozen=True)
class Event:
    """A slice of a stream, or a message of a connection. Times in µs since 1970."""

    is_slice: bool
    begin_us: int
    end_us: int
    connection: int
    sender: bool
    #: its serial; 0: of a message
    stream: int
    message: int
    bytes: int


@dataclass(frozen=True)
class Trace:
    snapshot: Snapshot
    began_us: int
    end_us: int
    events: list[Event]
    #: events that found no room
    dropped: int


def record(snapshot: Snapshot, seconds: int) -> Trace:
    """Has the process of this snapshot record for so long, 1 to 60.

    Raises:
        NoTrace: it does not answer: it has ended, is stopped, or is of an older version.
        OSError: its directory cannot be written to; another one records there already.
    """
    path = Path(f"{snapshot.path}.trace")
    descriptor = _ask(path, seconds)
    try:
        deadline = time.monotonic() + seconds + _PATIENCE_S
        while (header := os.pread(descriptor, _HEADER.size, 0))[: len(_MAGIC)] != _MAGIC:
            if time.monotonic() > deadline:
                what = f"process {snapshot.process['pid']} records nothing"
                raise NoTrace(f"{what}; it has ended, is stopped, moves nothing, or has an older bagua_net")
            time.sleep(_POLL_S)
        return _read(snapshot, descriptor, header)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _ask(path: Path, seconds: int) -> int:
    """The file in which the process writes. The lock says that somebody waits for it."""
    with contextlib.suppress(FileNotFoundError):
        before = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(before, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else another one waits
            path.unlink()
        except BlockingIOError:
            raise NoTrace("another `bagua-net trace` records this process; wait until it ends") from None
        finally:
            os.close(before)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, f"{seconds}\n".encode())
    return descriptor


def _read(snapshot: Snapshot, descriptor: int, header: bytes) -> Trace:
    _, version, size, count, dropped, began, end, ahead = _HEADER.unpack(header)
    if version != _VERSION or size != _EVENT.size:
        raise NoTrace(f"process {snapshot.process['pid']} has another bagua_net; use that one's command")
    data = os.pread(descriptor, count * size, _HEADER.size)
    events = [
        Event(kind == _SLICE, began_us + ahead, end_us + ahead, connection, bool(sender), stream, message, length)
        for began_us, end_us, connection, message, length, stream, kind, sender in _EVENT.iter_unpack(
            data[: len(data) // size * size]
        )
    ]
    return Trace(snapshot, began + ahead, end + ahead, events, dropped)


# ---- for Perfetto ----


def _connections(trace: Trace) -> dict[tuple[int, bool], Row]:
    return {(number(row, "id"), bool(number(row, "sender"))): row for row in trace.snapshot.connections}


def _name(row: Row | None, connection: int, sender: bool) -> str:
    arrow = "→" if sender else "←"
    return f"{arrow} {causes.host(row['peer']) if row is not None else '?'} (connection {connection})"


def as_json(trace: Trace) -> dict[str, Any]:
    """In the format of Chrome's traces, which Perfetto reads."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "program": str(trace.snapshot.process.get("program", "")),
            "pid": number(trace.snapshot.process, "pid"),
            "rank": str(trace.snapshot.process.get("rank", "")),
            "began_us": trace.began_us,
            "end_us": trace.end_us,
            "events_dropped": trace.dropped,
        },
        "traceEvents": list(_events(trace)),
    }


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    """A connection is what Chrome calls a process, and a stream a thread: so they are drawn below each other."""
    rows, seen, streams = _connections(trace), set[tuple[int, bool]](), set[tuple[int, int]]()
    for event in trace.events:
        key = (event.connection, event.sender)
        place = event.connection * 2 + event.sender
        if key not in seen:
            seen.add(key)
            name = _name(rows.get(key), *key)
            yield {"ph": "M", "name": "process_name", "pid": place, "args": {"name": name}}
        if event.is_slice:
            if (place, event.stream) not in streams:
                streams.add((place, event.stream))
                name = f"stream {event.stream}"
                yield {"ph": "M", "name": "thread_name", "pid": place, "tid": event.stream, "args": {"name": name}}
            yield _slice(event, place)
        else:
            yield from _message(event, place)


def _slice(event: Event, place: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "slice",
        "name": f"message {event.message}",
        "pid": place,
        "tid": event.stream,
        "ts": event.begin_us,
        "dur": event.end_us - event.begin_us,
        "args": {"bytes": event.bytes, "message": event.message},
    }


def _message(event: Event, place: int) -> Iterator[dict[str, Any]]:
    """Messages overlap, so they are no thread's."""
    common = {"cat": "message", "name": f"message {event.message}", "pid": place, "id": f"{place}/{event.message}"}
    yield {**common, "ph": "b", "ts": event.begin_us, "args": {"bytes": event.bytes}}
    yield {**common, "ph": "e", "ts": event.end_us}
