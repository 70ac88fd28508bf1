# SPDX-License-Identifier: MIT
"""Recordings of running processes (plugin/stats/trace.h), and their form for Perfetto and chrome://tracing.

A track for each stream has its slices, from the first byte that was written or read to the last. Beside them are the
messages of their connection, from the post until they were done: Perfetto draws them below, chrome://tracing above.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import BaguaNetError
from . import causes, files
from .files import Row, Snapshot
from .limits import number

_MAGIC = b"BNETTRAC"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQQQQQ")
_EVENT = struct.Struct("<QQQQQIHH")
_SLICE, _MESSAGE = 1, 2
_POLL_S = 0.05
#: A process that moves data looks twice a second whether somebody asks, and one that does not may not look for minutes.
#: To write takes less than a second in memory.
_BEGIN_S, _WRITE_S = 10.0, 30.0
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
    #: after the recording
    snapshot: Snapshot
    began_us: int
    end_us: int
    #: in the order in which they ended; messages that were posted before the begin are left out
    events: list[Event]
    #: later events, for which there was no place in memory
    dropped: int
    #: those for which there was none in the file system
    lost: int


def record(snapshot: Snapshot, seconds: int) -> Trace:
    """Has the process of this snapshot record for so long, 1 to 60.

    Raises:
        NoTrace: it does not answer: it has ended, is stopped, moves nothing, or is of an older version; or another one
            records it already.
        OSError: its directory cannot be written to.
    """
    path = Path(f"{snapshot.path}.trace")
    descriptor = _ask(path, seconds)
    try:
        header = _await(snapshot, descriptor, seconds)
        with contextlib.suppress(OSError, files.NotReadable):
            snapshot = files.read(snapshot.path)  # with the connections that were made meanwhile
        return _read(snapshot, descriptor, header)
    finally:
        if _is_at(path, descriptor):
            path.unlink()
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.lstat().st_ino == os.fstat(descriptor).st_ino
    except OSError:
        return False


def _ask(path: Path, seconds: int) -> int:
    """The file in which the process writes: it has its name once it has its content, and its lock as long as somebody
    waits."""
    descriptor = os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, f"{seconds}\n".encode())
        try:
            _give_name(descriptor, path)
        except FileExistsError:
            _remove_left(path)
            _give_name(descriptor, path)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _give_name(descriptor: int, path: Path) -> None:
    """Python follows a link, as the file's one in /proc, only where a directory is open."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def _remove_left(path: Path) -> None:
    """One that nobody waits for any more."""
    left = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, left):
            path.unlink()
    except BlockingIOError:
        raise NoTrace("another `bagua-net trace` records this process; wait until it ends") from None
    finally:
        os.close(left)


def _await(snapshot: Snapshot, descriptor: int, seconds: int) -> bytes:
    """The header, which the process writes last."""
    who, asked = f"process {snapshot.process['pid']}", f"{seconds}\n".encode()
    deadline, begun, lives = time.monotonic() + _BEGIN_S, False, True
    while (header := os.pread(descriptor, _HEADER.size, 0))[: len(_MAGIC)] != _MAGIC:
        if not lives:
            raise NoTrace(f"{who} has ended")
        if not begun and not header.startswith(asked):
            begun, deadline = True, time.monotonic() + seconds + _WRITE_S
        if time.monotonic() > deadline:
            raise NoTrace(f"{who} does not answer; it is stopped, moves nothing now, or has an older bagua_net")
        time.sleep(_POLL_S)
        lives = files.lives(snapshot.path)  # one that closes its last connection writes before that
    return header


def _read(snapshot: Snapshot, descriptor: int, header: bytes) -> Trace:
    _, version, size, count, dropped, lost, began, end, ahead = _HEADER.unpack(header)
    if version != _VERSION or size != _EVENT.size:
        raise NoTrace(f"process {snapshot.process['pid']} has another bagua_net; use that one's command")
    data = os.pread(descriptor, min(count * size, os.fstat(descriptor).st_size), _HEADER.size)
    events = [
        Event(kind == _SLICE, begin_us + ahead, end_us + ahead, connection, bool(sender), stream, message, length)
        for begin_us, end_us, connection, message, length, stream, kind, sender in _EVENT.iter_unpack(
            data[: len(data) // size * size]
        )
        if kind == _SLICE or begin_us >= began
    ]
    return Trace(snapshot, began + ahead, end + ahead, events, dropped, lost)


# ---- for Perfetto ----

#: Streams have other numbers than connections: Perfetto takes a thread for the main one that has its process's.
_STREAMS_FROM = 1001
#: A slice lasts there at least: Perfetto draws two that begin at the same time below each other.
_LEAST_US = 1


def _connections(trace: Trace) -> dict[tuple[int, bool], Row]:
    return {(number(row, "id"), bool(number(row, "sender"))): row for row in trace.snapshot.connections}


def _name(row: Row | None, number: int, sender: bool) -> str:
    arrow = "→" if sender else "←"
    return f"{arrow} {causes.host(row['peer']) if row is not None else 'a connection that has ended'} ({number})"


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
            "events_lost": trace.lost,
        },
        "traceEvents": list(_events(trace)),
    }


@dataclass
class _Tracks:
    """Small numbers, as Perfetto needs them, for connections and their streams: a library's are random, of 64 bits. A
    connection is what Chrome calls a process, and a stream a thread: so they are drawn below each other."""

    rows: dict[tuple[int, bool], Row]
    connections: dict[tuple[int, bool], int] = field(default_factory=dict)
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # of the last slice, by stream

    def of_connection(self, event: Event) -> Iterator[dict[str, Any]]:
        """What names it, the first time."""
        key = (event.connection, event.sender)
        if key not in self.connections:
            number = self.connections[key] = len(self.connections) + 1
            yield _meta("process_name", number, 0, _name(self.rows.get(key), number, event.sender))

    def of_stream(self, event: Event) -> Iterator[dict[str, Any]]:
        key = (self.connections[event.connection, event.sender], event.stream)
        if key not in self.streams:
            number = self.streams[key] = len(self.streams) + _STREAMS_FROM
            yield _meta("thread_name", key[0], number, f"stream {event.stream}")

    def times(self, event: Event, track: int) -> tuple[int, int]:
        """When a slice begins and how long it lasts, in µs: after the one before it; a stream has one at a time."""
        begin = max(event.begin_us, self.ends.get(track, 0))
        self.ends[track] = max(event.end_us, begin + _LEAST_US)
        return begin, self.ends[track] - begin


def _meta(kind: str, connection: int, stream: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": connection, "tid": stream, "args": {"name": name}}


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    tracks = _Tracks(_connections(trace))
    for event in trace.events:
        yield from tracks.of_connection(event)
        place = tracks.connections[event.connection, event.sender]
        if event.is_slice:
            yield from tracks.of_stream(event)
            track = tracks.streams[place, event.stream]
            yield _slice(event, place, track, *tracks.times(event, track))
        else:
            yield from _message(event, place)


def _slice(event: Event, place: int, track: int, begin_us: int, lasts_us: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "slice",
        "name": "slice",
        "pid": place,
        "tid": track,
        "ts": begin_us,
        "dur": lasts_us,
        "args": {"bytes": event.bytes, "message": event.message},
    }


def _message(event: Event, place: int) -> Iterator[dict[str, Any]]:
    """Messages overlap, so they are no thread's. Perfetto has a track for each name, below the process where the id is
    local."""
    common = {"cat": "message", "name": "message", "pid": place, "id2": {"local": hex(event.message)}}
    yield {**common, "ph": "b", "ts": event.begin_us, "args": {"bytes": event.bytes, "message": event.message}}
    yield {**common, "ph": "e", "ts": event.end_us}
