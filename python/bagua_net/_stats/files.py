# SPDX-License-Identifier: MIT
"""Reads the files in which processes that have loaded the plugin show what they do (plugin/stats/layout.h).

They may be written meanwhile, be left of a process that was killed, be of another version, or be damaged: whatever does
not fit is left out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._settings import layers
from .._text import printable

DIRECTORY = "/dev/shm"
_SETTING = "BAGUA_NET_STATS_DIR"
_MAGIC = b"BNETSTAT"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQ")
_MOST_BYTES = 4 << 20
_MOST_ROWS = 8192
_TRIES = 20
#: What these fields are, where the file is one that the package can use.
_NUMBERS = {
    "process": ["pid", "started_us", "published_us"],
    "connection": [
        "id",
        "sender",
        "opened_us",
        "published_us",
        "error",
        "streams",
        "level",
        "outstanding",
        "posted_us",
        "still_us",
        "bytes_sent",
        "bytes_received",
    ],
    "stream": [
        "connection",
        "sender",
        "serial",
        "busy_us",
        "rwnd_limited_us",
        "sndbuf_limited_us",
        "rtt_us",
        "segments_sent",
        "retransmits",
    ],
}
_TEXTS = {"process": ("rank", "world_size"), "connection": ("peer",), "stream": ("local", "remote")}
#: A table that a file of an older version does not have.
_OPERATIONS = "operation"
_OPERATION_NUMBERS = ("calls", "failed", "bytes", "time_us", "waiting_us", "running", "began_us")

Row = Mapping[str, int | str]


@dataclass(frozen=True)
class Snapshot:
    """What a process has shown last. Rows are as in layout.h: numbers since the beginning, times in µs."""

    path: Path
    #: it has not ended
    lives: bool
    process: Row
    connections: tuple[Row, ...]
    streams: tuple[Row, ...]
    #: what its collectives have done, by kind; none where it runs none of its own
    operations: tuple[Row, ...] = ()


@dataclass(frozen=True)
class _Table:
    start: int
    rows: int
    size: int
    fields: list[tuple[str, int, int]] = field(default_factory=list)

    def fits(self, size: int) -> bool:
        inside = all(at >= 0 and length > 0 and at + length <= self.size for _, at, length in self.fields)
        return inside and self.start >= 0 and 0 <= self.rows <= _MOST_ROWS and self.size >= 24 and self.end <= size

    def has(self, numbers: Sequence[str], texts: Sequence[str]) -> bool:
        lengths = {name: length for name, _, length in self.fields}
        return all(lengths.get(name) == 8 for name in numbers) and all(lengths.get(name, 8) != 8 for name in texts)

    @property
    def end(self) -> int:
        return self.start + self.rows * self.size

    def read(self, data: bytes, number: int) -> dict[str, int | str]:
        start = self.start + number * self.size
        row: dict[str, int | str] = {}
        for name, at, length in self.fields:
            raw = data[start + at : start + at + length]
            if length == 8:
                row[name] = int.from_bytes(raw, "little")
            else:
                text = raw.partition(b"\0")[0].decode(errors="replace")
                row[name] = printable(text)
        return row


class NotReadable(ValueError):
    """It is none of these files, or damaged, or of a later version."""


def directory() -> Path:
    """Where this user's processes put them, with the settings of this environment."""
    chosen = layers.effective(_SETTING, layers.of_a_job()).value or DIRECTORY
    return Path(chosen) / f"bagua-net-stats-{os.geteuid()}"


def nothing() -> str:
    """A sentence where no process is found."""
    return (
        f"no process of this user shows connections in {directory()}. Is the job's plugin on (bagua-net status)? It "
        f"must run as this user and in this container, with the same {_SETTING}, without BAGUA_NET_STATS=0, and with "
        "16 MB free there"
    )


def name_of(snapshot: Snapshot) -> str:
    """Program, number and rank, for people."""
    process = snapshot.process
    rank, ranks = process.get("rank", ""), process.get("world_size", "")
    of = f", rank {rank}" + (f" of {ranks}" if ranks else "") if rank else ""
    return f"{process.get('program') or 'process'} (PID {process['pid']}{of})"


def _schema(data: bytes) -> dict[str, _Table]:
    if len(data) < _HEADER.size:
        raise NotReadable("too short")
    magic, version, size, at, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or size > len(data) or at + length > len(data):
        raise NotReadable("not one of these files, or of another version")
    tables: dict[str, _Table] = {}
    table: _Table | None = None
    try:
        for line in data[at : at + length].decode("ascii").splitlines():
            words = line.split()
            if words[0] == "table":
                tables[words[1]] = table = _Table(int(words[2]), int(words[3]), int(words[4]))
            elif table is not None:
                table.fields.append((words[0], int(words[1]), int(words[2])))
    except (ValueError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise NotReadable("damaged") from error
    for name in _NUMBERS:
        if name not in tables or not tables[name].fits(len(data)) or not tables[name].has(_NUMBERS[name], _TEXTS[name]):
            raise NotReadable("damaged")
    found = {name: tables[name] for name in _NUMBERS}
    operations = tables.get(_OPERATIONS)
    if operations and operations.fits(len(data)) and operations.has(_OPERATION_NUMBERS, (_OPERATIONS,)):
        found[_OPERATIONS] = operations
    return found


def _is_whole(row: bytes, again: bytes) -> bool:
    """Was the row not being written?"""
    return row == again and row[:8] == row[-8:]


def _rows(table: _Table, data: bytes, again: bytes) -> Iterator[Row | None]:
    for number in range(table.rows):
        start = table.start + number * table.size
        if not _is_whole(data[start : start + table.size], again[start : start + table.size]):
            yield None
        elif data[start + 8]:
            yield table.read(data, number)


def lives(path: Path) -> bool:
    """Has the process of this file not ended?"""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _lives(descriptor)
    finally:
        os.close(descriptor)


def _bytes_of(descriptor: int) -> bytes:
    return os.pread(descriptor, _MOST_BYTES, 0)


def _lives(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def read(path: Path) -> Snapshot:
    """One file.

    Raises:
        OSError: it cannot be opened; it is another user's.
        NotReadable: it is not such a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise NotReadable("no file of this user")
        for _ in range(_TRIES):
            lives = _lives(descriptor)
            data, again = _bytes_of(descriptor), _bytes_of(descriptor)
            tables = _schema(data)
            found = {name: list(_rows(table, data, again)) for name, table in tables.items()}
            # A process that was killed while it wrote a row leaves that one so.
            if not lives or all(row is not None for rows in found.values() for row in rows):
                break
        whole = {name: tuple(row for row in rows if row is not None) for name, rows in found.items()}
        if not whole["process"]:
            raise NotReadable("nothing is in it yet")
        operations = whole.get(_OPERATIONS, ())
        return Snapshot(path, lives, whole["process"][0], whole["connection"], whole["stream"], operations)
    finally:
        os.close(descriptor)


def read_all(where: Path) -> list[Snapshot]:
    """Those of a directory that can be read, by the time at which their processes began.

    Raises:
        OSError: it is not this user's, or cannot be read.
    """
    found: list[Snapshot] = []
    try:
        owner = where.lstat()
    except FileNotFoundError:
        return []
    if owner.st_uid != os.geteuid() or not stat.S_ISDIR(owner.st_mode):
        raise PermissionError(errno.EPERM, "not a directory of this user", str(where))
    paths = sorted(path for path in where.iterdir() if not path.suffix)  # others are of those who look
    for path in paths:
        with contextlib.suppress(OSError, NotReadable):
            found.append(read(path))
    return sorted(found, key=lambda each: (not each.lives, each.process["started_us"]))
