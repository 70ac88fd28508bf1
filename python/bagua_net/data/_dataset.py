# SPDX-License-Identifier: MIT
"""A dataset whose samples are made once for all processes of a host."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from ._cache import CAPACITY, CacheLoader
from ._fingerprint import fingerprint as fingerprint_of


class CachedDataset(Dataset):  # type: ignore[misc]
    """A map-style dataset that keeps each sample in a file, which all ranks and loader workers of a host share.

    For samples that cost more to make than to read: decoded, resampled, tokenized. A sample keeps the random choices of
    its first request, so random augmentation belongs after the cache.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> squares = CachedDataset([torch.tensor(n**2) for n in range(4)], path=f"{directory.name}/squares.cache")
    >>> [squares[1], squares[1]], squares.hits, squares.misses
    ([tensor(1), tensor(1)], 1, 1)
    >>> squares.close(); directory.cleanup()

    Args:
        dataset: with ``__getitem__`` and a length; its indices may be all that :meth:`CacheLoader.get` takes.
        path: of the file, one for each dataset.
        fingerprint: names the dataset: a file with another name is refused. By default it is derived from the type,
            the length and the attributes of the dataset. Code is not part of it: after changing a function that makes
            samples, delete the file, or give a name with a version. Of what is above 256 MiB a sample is part of it,
            and a warning names what cannot be looked into.
        capacity, encode, decode: as of :class:`CacheLoader`, which describes the file.

    Raises:
        TypeError: the dataset has no ``__getitem__`` or no length.
        CacheMismatch: the file is the cache of another dataset; the message names the first difference.
        ValueError: nothing of the dataset can be looked into, and it has no fingerprint; also as :class:`CacheLoader`.
        CacheUnusable: as :class:`CacheLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        path: str | os.PathLike[str],
        *,
        fingerprint: str | None = None,
        capacity: int = CAPACITY,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        if (
            isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__getitem__")
            or not hasattr(dataset, "__len__")
        ):
            raise TypeError(
                f"a {type(dataset).__name__} has no samples by index: CachedDataset needs a map-style dataset"
            )
        if fingerprint is None:
            fingerprint = fingerprint_of(dataset, encode=encode, decode=decode)
        self.dataset = dataset
        self.cache = CacheLoader(path, fingerprint=fingerprint, capacity=capacity, encode=encode, decode=decode)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """As of the dataset. Raises also what :meth:`CacheLoader.get` raises."""
        return self.cache.get(index, self.dataset.__getitem__)

    @property
    def hits(self) -> int:
        """Samples that this process read. Each worker of a DataLoader is a process of its own."""
        return self.cache.hits

    @property
    def misses(self) -> int:
        """Samples that this process made."""
        return self.cache.misses

    def close(self) -> None:
        """Closes the file in this process; the next sample opens it again."""
        self.cache.close()
