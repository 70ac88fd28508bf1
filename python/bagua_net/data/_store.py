# SPDX-License-Identifier: MIT
"""A file of keys and values that the processes of one host share.

SQLite in WAL mode, from the standard library: readers do not wait for a writer, and a process that is killed at any
point leaves what was stored before. LMDB copies less, but is one more package, and its file needs a size in advance.

Beside PATH there are SQLite's own PATH-wal and PATH-shm, and PATH-lock, on which processes wait for each other
(_keylocks.py). POSIX drops all of a process's locks on a file when the process closes any descriptor of it. So no
function here opens PATH itself once it exists: SQLite's locks are on it.

SQLite must not be carried through fork(): a child would believe that it holds the parent's locks. So connections are
closed before every fork of Python's, and each process opens its own when it needs one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import threading
import urllib.parse
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _keylocks
from ._errors import CacheMismatch, CacheUnusable
from ._fingerprint import difference
from ._mounts import check_local

_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: In the header of the file: whose it is ("bgnc"), and the version of what is in it.
_APPLICATION_ID = 0x62676E63
_VERSION = 1
#: Seconds that a statement waits for another process's transaction, which takes milliseconds.
_BUSY_S = 60
#: Four times SQLite's default, as a sample is longer than a row of other databases: writing takes half the time.
_PAGE_BYTES = 16 * 2**10
#: What remains of PATH-wal after its contents have moved into PATH.
_WAL_BYTES = 16 * 2**20
_LOCK_SUFFIX = "-lock"
_SUFFIXES = ("-wal", "-shm", _LOCK_SUFFIX)
_DELETE = f"delete it and the files beside it (its name with {', '.join(_SUFFIXES)})"
#: SQLite's words for a value that was not written and did no harm. Python has its codes from 3.11 on.
_FULL = "database or disk is full"
_NOT_WRITTEN = (_FULL, "database is locked", "string or blob too big")

#: Around all use of connections in this process, and held while it forks.
_use = threading.Lock()
_open: weakref.WeakSet[Store] = weakref.WeakSet()


def _before_fork() -> None:
    _use.acquire()
    for store in list(_open):
        store._disconnect()


os.register_at_fork(before=_before_fork, after_in_parent=_use.release, after_in_child=_use.release)


class NotStored(Exception):
    """A value was not written: SQLite's reason, and whether that is lack of space."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.full = reason == _FULL


class Store:
    """Any thread. Keys and values are bytes; a key's value never changes.

    Args:
        path: made if it does not exist, readable by this user only.
        fingerprint: of what the values are made from.
        capacity: bytes that the file may take.

    Raises:
        CacheUnusable: from every method; see there.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, capacity: int) -> None:
        self._connection: sqlite3.Connection | None = None
        self.path = Path(path).absolute()
        self.fingerprint = fingerprint
        self.capacity = capacity
        with self._connected():
            pass

    def __reduce__(self) -> tuple[Any, ...]:
        """For processes that are not forked: each opens its own connection."""
        return Store, (self.path, self.fingerprint, self.capacity)

    def read(self, key: bytes) -> bytes | None:
        with self._connected() as connection:
            row = connection.execute("SELECT value FROM samples WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def write(self, key: bytes, value: bytes) -> None:
        """A value that is there already stays.

        Raises:
            NotStored: the file may not grow, its disk is full, the value is larger than SQLite's limit (a billion
                bytes) or Python's (2 GiB), or another process does not end its transaction.
        """
        with self._connected() as connection:
            try:
                connection.execute("INSERT OR IGNORE INTO samples VALUES (?, ?)", (key, value))
            except sqlite3.Error as error:
                if str(error) in _NOT_WRITTEN:
                    raise NotStored(str(error)) from None
                raise
            except OverflowError as error:
                raise NotStored(str(error)) from None

    def count(self) -> int:
        with self._connected() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM samples").fetchone()[0])

    def alone(self, key: bytes) -> contextlib.AbstractContextManager[None]:
        """Other threads and processes wait at this key, but not in a circle: see :func:`_keylocks.alone`."""
        return _keylocks.alone(self._lock_path, key)

    def close(self) -> None:
        """Repeated calls do nothing. A later call of another method opens the file again."""
        with _use:
            self._disconnect()

    def __del__(self) -> None:  # nobody else can use it now, and the collector may run while _use is held
        self._disconnect()

    # ---- the connection; _use is held ----

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with _use:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                    _open.add(self)
                yield self._connection
            except sqlite3.Error as error:
                raise CacheUnusable(f"{self.path} cannot be used as a cache: {error}; {_DELETE}") from None

    def _connect(self) -> sqlite3.Connection:
        check_local(self.path)
        _make(self.path)
        with _keylocks.opened(self._lock_path) as lock:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX)  # independent of the keys' locks
            try:
                uri = f"file:{urllib.parse.quote(str(self.path))}?mode=rw"
                connection = sqlite3.connect(uri, _BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
                try:
                    self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
                return connection
            finally:
                fcntl.flock(lock.descriptor, fcntl.LOCK_UN)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _is_empty(connection):
            self._initialize(connection)
        if _pragma(connection, "application_id") != _APPLICATION_ID:
            raise CacheUnusable(f"{self.path} is a database of another program: give another path")
        if _pragma(connection, "user_version") != _VERSION:
            raise CacheUnusable(f"{self.path} is a cache of another version of this package: {_DELETE}")
        (found,) = connection.execute("SELECT fingerprint FROM made_from").fetchone()
        if found != self.fingerprint:
            raise CacheMismatch(f"{self.path} is the cache of another dataset: {difference(found, self.fingerprint)}")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power loss takes the last samples, not the file
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {max(1, self.capacity // _pragma(connection, 'page_size'))}")

    def _initialize(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise CacheUnusable(
                f"{self.path} is on a file system that processes cannot share memory by: use a local one"
            )
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):  # no other process was faster
            connection.execute("CREATE TABLE made_from (fingerprint TEXT NOT NULL)")
            connection.execute("INSERT INTO made_from VALUES (?)", (self.fingerprint,))
            connection.execute("CREATE TABLE samples (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def _lock_path(self) -> str:
        return f"{self.path}{_LOCK_SUFFIX}"


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Whether no program has used the database yet."""
    return _pragma(connection, "application_id") == 0 and _pragma(connection, "schema_version") == 0


def _make(path: Path) -> None:
    """
    Raises:
        CacheUnusable: it cannot be made, is no file, or others than this user could have written to it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE))
    except FileExistsError:
        pass
    except OSError as error:
        raise CacheUnusable(f"{path} cannot be made: {error.strerror}") from None
    try:
        _check(path)
    except OSError as error:
        raise CacheUnusable(f"{path} is a link that leads to no file ({error.strerror}): give another path") from None
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            _check(Path(f"{path}{suffix}"))


def _check(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CacheUnusable(f"{path} is not a file: give the path of one")
    if found.st_uid != os.geteuid():
        raise CacheUnusable(f"{path} belongs to the user {found.st_uid}, and this is {os.geteuid()}: give another path")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise CacheUnusable(f"others may write to {path}: delete it, or after a check `chmod 600` it")
