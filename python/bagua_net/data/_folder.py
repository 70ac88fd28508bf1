# SPDX-License-Identifier: MIT
"""Bytes by name, a file each, in a folder that threads, processes and hosts share.

Plain files, and neither SQLite nor LMDB: those must not be carried through fork(), which is how a DataLoader makes its
workers, and damage their files where hosts share a file system. A file that is renamed into its place is there whole or
not at all, whoever is killed. Nothing stays open between two calls, so a folder can be forked and pickled as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
#: Of directories around it that are not there yet: no umask lets others write to them.
_PARENTS_MODE = 0o755
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: Seconds that a request waits for another one that makes the same value.
_PATIENCE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
#: A file takes whole blocks of most file systems.
_BLOCK_BYTES = 4096
#: The file that a value is written to and locked by. It is renamed to the value's file, or left empty if writing fails.
_UNFINISHED = ".part"
#: How many bytes the values take, as a decimal number: it only grows.
_TOTAL = "total.bytes"

_mine = threading.local()


class Folder:
    """
    Args:
        path: made if it does not exist, for this user alone.
        capacity: bytes that the values may take.

    Raises:
        OSError: it cannot be made, or others could have written to it. Also from all methods.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        path.parent.mkdir(_PARENTS_MODE, parents=True, exist_ok=True)
        path.mkdir(_FOLDER_MODE, exist_ok=True)
        path = path.resolve()  # where a link leads to may change
        found, around = path.stat(), path.parent.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to the user {found.st_uid}, and this is {os.geteuid()}")
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(errno.EPERM, "others may write to it: `chmod go-w` if you trust what is in it")
        if around.st_mode & _WRITABLE_BY_OTHERS and not around.st_mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, "others may replace it, since they may write to the directory around it")
        self._path = path
        self.capacity = capacity

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """While this lasts, others that ask for the name wait, up to a minute. The kernel lets them go on if this
        process dies. False: another one has it still, or has it while this thread has another name; or it has just been
        written, even if a network's file system does not show that yet.

        A thread that has a name does not wait for one. So no circle of waiting threads and processes can form; if what
        they wait for is no name, such as a collective operation, the minute ends it.
        """
        patience = 0.0 if getattr(_mine, "names", 0) else _PATIENCE_S
        unfinished = self._path / f"{name}{_UNFINISHED}"
        with _locked(unfinished, patience) as descriptor:
            _mine.names = getattr(_mine, "names", 0) + 1
            try:
                yield descriptor is not None and _is(descriptor, unfinished)
            finally:
                _mine.names -= 1

    def write(self, name: str, value: bytes) -> None:
        """Only who has :meth:`claimed` the name."""
        unfinished = self._path / f"{name}{_UNFINISHED}"
        try:
            unfinished.write_bytes(value)  # closed before it is renamed: NFS may find only then that there is no space
            self._count(-(-len(value) // _BLOCK_BYTES) * _BLOCK_BYTES)
        except OSError:
            os.truncate(unfinished, 0)
            raise
        unfinished.rename(self._path / name)

    def count(self) -> int:
        return sum(not each.name.endswith((_UNFINISHED, _TOTAL)) for each in self._path.iterdir())

    def _count(self, more: int) -> None:
        """
        Raises:
            OSError: it would be too much.
        """
        with _locked(self._path / _TOTAL, _PATIENCE_S) as descriptor:
            if descriptor is None:
                raise TimeoutError(errno.ETIMEDOUT, f"{_TOTAL} stays locked")
            digits = os.pread(descriptor, 20, 0)
            total = more + (int(digits) if digits.isdigit() else 0)
            if total > self.capacity:
                raise OSError(errno.EDQUOT, f"it has the {self.capacity} bytes that it may have")
            os.pwrite(descriptor, b"%d" % total, 0)


@contextlib.contextmanager
def _locked(path: Path, patience: float) -> Iterator[int | None]:
    """The file's descriptor; None: it stays locked. Unlocking is explicit, since a process that another thread forked
    meanwhile has the same descriptor, and keeps it open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE)
    try:
        if not _lock(descriptor, patience):
            yield None
            return
        try:
            yield descriptor
        finally:
            with contextlib.suppress(OSError):  # of a network's file system
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        with contextlib.suppress(OSError):  # of a file system that fails later than at the write
            os.close(descriptor)


def _is(descriptor: int, path: Path) -> bool:
    """Is this the file of that name still? Another one may have renamed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, patience: float) -> bool:
    end, pause = time.monotonic() + patience, _FIRST_PAUSE_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
