# SPDX-License-Identifier: MIT
"""Values that are expensive to make, made once for all processes of a host, in the order of any epoch."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, IterableDataset

from .._errors import BaguaNetError
from ._folder import Folder

#: Bytes. Upstream's, for each of its servers.
CAPACITY = 100 * 2**30
_DIGEST_BYTES = 16

_log = logging.getLogger("bagua_net.data")


class SampleUnsupported(BaguaNetError, TypeError):
    """A sample or a key has a part of a type that a cache does not store."""


class CacheLoader:
    """Values by key, in a folder that all processes of a host share: the first that asks for one makes it.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> cache = CacheLoader("squares", directory.name)
    >>> cache.get(3, lambda key: key**2), cache.get(3, lambda key: 0), cache.num_keys()
    (9, 9, 1)
    >>> directory.cleanup()

    A cache that cannot be used, or takes no more (its disk or ``capacity`` is full), never ends a job: what is not in
    it is made at each request, and the log says so once in each process. None is given up for another one: epochs ask
    for every sample in turn, so the one that is evicted would be asked for next.

    Args:
        dataset_name: names what the values are, and a change of how they are made: a new name is a new cache.
        directory: its folders are the caches. Default: ``$XDG_CACHE_HOME/bagua-net``, or ``~/.cache/bagua-net``.
        capacity: bytes that the values may take.

    Raises:
        ValueError: this is no name of a folder, or the capacity is not positive.
    """

    def __init__(
        self, dataset_name: str, directory: str | os.PathLike[str] | None = None, *, capacity: int = CAPACITY
    ) -> None:
        if dataset_name in ("", ".", "..") or "/" in dataset_name or "\0" in dataset_name:
            raise ValueError(
                f"dataset_name={dataset_name!r} is no name of a folder: give the data set a name of its own"
            )
        if capacity <= 0:
            raise ValueError(f"capacity={capacity} is no number of bytes that a cache could take")
        self._folder: Folder | None = None
        self._takes_more = True
        self._told: set[str] = set()
        self._where = dataset_name
        try:
            path = _directory() / dataset_name if directory is None else Path(directory) / dataset_name
            self._where = str(path)
            self._folder = Folder(path, capacity)
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            told = (
                "cannot be used, and all values are made at each request; directory= or XDG_CACHE_HOME choose another"
            )
            self._tell(told, error)

    def get(self, key: Any, load_fn: Callable[[Any], Any]) -> Any:
        """The value of a key: read, or made by ``load_fn(key)`` and read back, so that all requests get the same.

        Args:
            key: an integer or a string.

        Raises:
            SampleUnsupported: the key is another type's; or the value has a part that ``torch.load`` does not read
                with ``weights_only``, and nothing was stored.
        """
        name = _name(key)
        found = self._read(name)
        if found is None and self._folder is not None and self._takes_more:
            return self._made(self._folder, name, key, load_fn)
        return load_fn(key) if found is None else found[0]

    def num_keys(self) -> int:
        """How many values there are."""
        try:
            return 0 if self._folder is None else self._folder.count()
        except FileNotFoundError:  # deleted, as a cache may be
            return 0

    def _read(self, name: str) -> tuple[Any] | None:
        try:
            data = None if self._folder is None else self._folder.read(name)
            return None if data is None else (_decoded(_checked(data)),)
        except Exception as error:  # whatever damaged bytes make torch raise
            self._tell("has values that cannot be read, which are made again", error)
            return None

    def _made(self, folder: Folder, name: str, key: Any, load_fn: Callable[[Any], Any]) -> Any:
        with contextlib.ExitStack() as stack:
            try:
                mine = stack.enter_context(folder.claimed(name))
            except OSError as error:
                self._stop(error)
                return load_fn(key)
            found = self._read(name)  # another process made it meanwhile
            if found is not None:
                return found[0]
            value, data = _encoded(key, load_fn(key))
            if len(data) > folder.capacity:
                self._tell("does not take all values", ValueError(f"one has {len(data)} bytes, more than all may have"))
                return value
            try:
                if mine:
                    folder.write(name, _digest(data) + data)
            except OSError as error:
                self._stop(error)
            return value

    def _stop(self, error: OSError) -> None:
        self._takes_more = False
        self._tell("takes no more values, and those that it lacks are made at each request", error)

    def _tell(self, what: str, error: Exception) -> None:
        if what not in self._told:
            self._told.add(what)
            reason = getattr(error, "strerror", None) or _first_line(error)
            _log.warning("the cache %s %s: %s", self._where, what, reason)


class CachedDataset(Dataset):  # type: ignore[misc]
    """A map-style dataset whose samples all ranks and loader workers of a host make once (:class:`CacheLoader`).

    For samples that cost more to make than to read: decoded, resampled, tokenized. A sample keeps the random choices of
    its first request, so random augmentation belongs after the cache.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> squares = CachedDataset([torch.tensor(n**2) for n in range(4)], "squares", directory.name)
    >>> squares[3], len(squares), squares.cache_loader.num_keys()
    (tensor(9), 4, 1)
    >>> directory.cleanup()

    Args:
        dataset: with ``__getitem__`` and a length; its indices are integers or strings.
        dataset_name, directory, capacity: as of :class:`CacheLoader`.

    Raises:
        TypeError: the dataset has no ``__getitem__`` or no length.
        ValueError: as :class:`CacheLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        dataset_name: str,
        directory: str | os.PathLike[str] | None = None,
        *,
        capacity: int = CAPACITY,
    ) -> None:
        indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not indexed:
            kind = type(dataset).__name__
            raise TypeError(f"a {kind} has no samples by index: CachedDataset needs a map-style dataset")
        self.dataset = dataset
        self.cache_loader = CacheLoader(dataset_name, directory, capacity=capacity)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """As of the dataset. Raises also what :meth:`CacheLoader.get` raises."""
        return self.cache_loader.get(index, self.dataset.__getitem__)


def _directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "bagua-net"


def _name(key: Any) -> str:
    """Numbers of numpy and torch are Python's: a key is the same from any sampler."""
    try:
        plain = str(key) if isinstance(key, str) else int(operator.index(key))
    except TypeError:
        kind = type(key).__name__
        raise SampleUnsupported(f"a {kind} is no key of a cache: it takes integers and strings") from None
    return hashlib.blake2b(repr(plain).encode(errors="surrogatepass"), digest_size=16).hexdigest()


# ---- values as bytes: torch's own form, which its loader reads without running code of it ----


def _encoded(key: Any, value: Any) -> tuple[Any, bytes]:
    """The value as it will be read, and its bytes.

    Raises:
        SampleUnsupported: it cannot be written, or not be read.
    """
    buffer = io.BytesIO()
    try:
        torch.save(tree_map_only(torch.Tensor, _alone, value), buffer)
    except Exception as error:  # of the value's own classes
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise SampleUnsupported(f"the value of {key!r} cannot be stored: {reason}") from None
    data = buffer.getvalue()
    try:
        return _decoded(data), data
    except Exception as error:
        kinds = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
        raise SampleUnsupported(
            f"the value of {key!r} has what a cache does not keep: {', '.join(kinds) or _first_line(error)}. It keeps "
            "tensors, numbers, strings, bytes, None, and dicts, lists, tuples and sets of these. Make tensors of arrays"
            " by torch.from_numpy; allow a class of your own by torch.serialization.add_safe_globals in all processes"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """torch stores the whole memory of what a tensor is a part of."""
    if tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return tensor
    return tensor.clone()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _checked(stored: bytes) -> bytes:
    """What was stored. torch reads past damage within a tensor, as a power loss may leave it.

    Raises:
        ValueError: it is not what was written.
    """
    data = stored[_DIGEST_BYTES:]
    if stored[:_DIGEST_BYTES] != _digest(data):
        raise ValueError("a value is not what was written")
    return data


def _decoded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
