# SPDX-License-Identifier: MIT
"""Locks of keys: of the threads and processes of a host that ask for one key, one at a time goes on.

Processes are kept apart by POSIX locks, of one byte of a file for each key. The kernel frees them when a process ends,
and it finds processes that would wait for each other. It does not for locks of an open file (F_OFD_SETLKW).

POSIX locks belong to a process. Its threads do not exclude each other, and where one closes any descriptor of the file,
all of its locks on it are gone. So threads are kept apart here before they ask the kernel, and a process has one
descriptor of a file, open while a thread uses it. A forked child has none of its parent's locks, and opens its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ._errors import CacheUnusable

_MODE = 0o600
#: Offsets in the file, one for each key; it may have offsets up to 2^63 - 1.
_OFFSETS = 2**62


class LockFile:
    """The one descriptor of a file in this process."""

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self.identity = found.st_dev, found.st_ino
        self.descriptor = descriptor
        self.users = 0


_Lock = tuple[LockFile, int]

#: Around all use of what is below, and told of every key that becomes free.
_changed = threading.Condition(threading.Lock())
_files: dict[tuple[int, int], LockFile] = {}
#: The thread that has a key, and the key that a thread waits for because another thread has it.
_owners: dict[_Lock, int] = {}
_waits: dict[int, _Lock] = {}


def _forget() -> None:
    """In a forked child, which has descriptors and no locks: closing them frees none."""
    for file in _files.values():
        os.close(file.descriptor)
    for table in (_files, _owners, _waits):
        table.clear()
    _changed.release()


os.register_at_fork(before=_changed.acquire, after_in_parent=_changed.release, after_in_child=_forget)


@contextlib.contextmanager
def opened(path: str) -> Iterator[LockFile]:
    """The file, made if it does not exist.

    Raises:
        CacheUnusable: it cannot be made or opened, or is a link.
    """
    with _changed:
        file = _find(path)
        file.users += 1
    try:
        yield file
    finally:
        with _changed:
            file.users -= 1
            if file.users == 0 and _files.get(file.identity) is file:  # not in a child that was forked meanwhile
                del _files[file.identity]
                os.close(file.descriptor)


def _find(path: str) -> LockFile:
    try:
        with contextlib.suppress(FileNotFoundError):
            found = Path(path).lstat()
            if (found.st_dev, found.st_ino) in _files:  # by any name: a second descriptor could never be closed
                return _files[found.st_dev, found.st_ino]
        file = LockFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE))
    except OSError as error:
        raise CacheUnusable(f"{path} cannot be used: {error.strerror}") from None
    _files[file.identity] = file
    return file


@contextlib.contextmanager
def alone(path: str, key: bytes) -> Iterator[None]:
    """Other threads and processes wait at this key. The kernel lets them go on if this process dies.

    A thread that has the key already goes on. Where each of some threads or processes has a key and waits for that of
    another, the last one to ask goes on at once, although it is not alone. For the kernel a process is one, so with
    several threads in each it may take two processes for such a circle that are none, and may miss one of three.

    Raises:
        CacheUnusable: as of :func:`opened`, or the file system has no locks.
    """
    offset = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % _OFFSETS
    with opened(path) as file:
        if not _begin(file, offset):
            yield
            return
        try:
            _wait_for_processes(path, file, offset)
            yield
        finally:
            _end(file, offset)


def _begin(file: LockFile, offset: int) -> bool:
    """Waits for the key among the threads. False: it is this thread's, or comes free only when this one goes on."""
    me, lock = threading.get_ident(), (file, offset)
    with _changed:
        while lock in _owners:
            if _waits_for(_owners[lock], me):
                return False
            _waits[me] = lock
            try:
                _changed.wait()
            finally:
                del _waits[me]
        _owners[lock] = me
    return True


def _waits_for(thread: int, me: int) -> bool:
    """Whether the thread is this one, or waits for one that does. Waiting threads form no circle, so this ends."""
    while thread != me:
        lock = _waits.get(thread)
        if lock not in _owners:
            return False
        thread = _owners[lock]
    return True


def _wait_for_processes(path: str, file: LockFile, offset: int) -> None:
    try:
        fcntl.lockf(file.descriptor, fcntl.LOCK_EX, 1, offset)
    except OSError as error:
        if error.errno != errno.EDEADLK:
            raise CacheUnusable(f"{path} cannot be locked: {error.strerror}") from None


def _end(file: LockFile, offset: int) -> None:
    with _changed:
        if _owners.pop((file, offset), None) is not None:  # not in a child that was forked meanwhile
            fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, offset)
            _changed.notify_all()
