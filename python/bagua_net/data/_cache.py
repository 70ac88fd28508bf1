# SPDX-License-Identifier: MIT
"""Values that are expensive to make, made once for all processes of a host."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._errors import CacheUnusable, SampleUnsupported
from ._samples import decode, encode
from ._store import NotStored, Store

#: Bytes. Upstream's, for each of its servers.
CAPACITY = 100 * 2**30

_log = logging.getLogger("bagua_net.data")


class CacheLoader:
    """A file of values that all processes of a host share: each is made by the first that asks for it.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> cache = CacheLoader(f"{directory.name}/squares.cache")
    >>> cache.get(3, lambda key: key**2), cache.get(3, lambda key: key**2)
    (9, 9)
    >>> cache.hits, cache.misses, cache.num_keys()
    (1, 1, 1)
    >>> cache.close(); directory.cleanup()

    Values are tensors on the CPU, numpy arrays, numbers, strings, bytes, None, and dicts, lists and tuples of these; a
    tensor comes back contiguous. Reading runs no code from the file, which this user alone can read (0600). Of two
    processes or threads that ask for a key at the same time one makes the value while the other waits. A process that
    is killed leaves what was stored before. Threads, fork and spawn are supported.

    A function that makes a value may ask for other keys. Where two of them would wait for each other's, the last one to
    ask goes on at once and makes that value a second time. Between processes of several threads each, that happens now
    and then without need: the kernel, which finds it, does not tell threads apart.

    A full cache (capacity, or the disk's end) stays as it is: the values in it are still read, others are made at each
    request, and the log says so once. None is given up for another one: epochs ask for every sample in turn, so the one
    that is evicted would be the one that is asked for next.

    Args:
        path: of a file on a local disk, or in /dev/shm; its directory exists. Some files beside it begin with its name.
        fingerprint: names what the values are made from: a file with another one is refused.
        capacity: bytes that the file may take; some MB of not yet ordered values beside it are not counted.
        encode, decode: for values of other types: a function to one of the above, and its inverse. Both, or neither.

    Raises:
        CacheUnusable: the file is no cache, is damaged, is another user's or writable by others, cannot be made, or is
            on a file system that hosts share or that does not share memory between processes. Also from :meth:`get`.
        CacheMismatch: it has another fingerprint.
        ValueError: the capacity is not positive, or only one of ``encode`` and ``decode`` is given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fingerprint: str = "",
        capacity: int = CAPACITY,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        if (encode is None) != (decode is None):
            raise ValueError("encode and decode belong together: give both, or neither")
        if capacity <= 0:
            raise ValueError(f"capacity={capacity} is no number of bytes that a cache could take")
        self._encode, self._decode = encode, decode
        self._store = Store(path, fingerprint, capacity)
        self._full = False
        self._told = False
        self.hits = 0
        """Values that this process read. Each worker of a DataLoader is a process of its own."""
        self.misses = 0
        """Values that this process made."""

    def get(self, key: Any, load_fn: Callable[[Any], Any]) -> Any:
        """The value of a key: read, or made by ``load_fn(key)``.

        Args:
            key: an integer, a string, bytes, or a tuple of these.

        Raises:
            SampleUnsupported: the key or the value has a part of another type; nothing was stored.
            CacheUnusable: the file was damaged, or cannot be read or written.
        """
        name = _name(key)
        value = self._store.read(name)
        if value is None and self._full:
            return self._make(key, name, load_fn)
        if value is None:
            with self._store.alone(name):
                value = self._store.read(name)
                if value is None:
                    return self._make(key, name, load_fn)
        self.hits += 1
        return self._decoded(value)

    def num_keys(self) -> int:
        """How many values the file has."""
        return self._store.count()

    def close(self) -> None:
        """Closes the file in this process; :meth:`get` opens it again."""
        self._store.close()

    def __enter__(self) -> CacheLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "hits": 0, "misses": 0}

    def _make(self, key: Any, name: bytes, load_fn: Callable[[Any], Any]) -> Any:
        value = load_fn(key)
        self.misses += 1
        plain = value if self._encode is None else self._encode(value)
        try:
            self._store.write(name, encode(plain))
        except NotStored as error:
            self._full = self._full or error.full
            if not self._told:
                self._told = True
                _log.warning("%s: %s; what is not in it is made at each request", self._store.path, error)
        return value

    def _decoded(self, data: bytes) -> Any:
        try:
            plain = decode(data)
        except CacheUnusable as error:
            raise CacheUnusable(f"{self._store.path} is damaged: {error}; delete it") from None
        return plain if self._decode is None else self._decode(plain)


def _name(key: Any) -> bytes:
    return encode(_plain_key(key))


def _plain_key(key: Any) -> Any:
    """Numbers of numpy and torch as Python's: a key is the same from any sampler."""
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    if isinstance(key, (str, bytes)):
        return key
    try:
        return operator.index(key)
    except TypeError:
        raise SampleUnsupported(
            f"a {type(key).__name__} is no key of a cache: it takes integers, strings, bytes and tuples of these"
        ) from None
