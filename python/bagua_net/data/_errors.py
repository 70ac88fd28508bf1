# SPDX-License-Identifier: MIT
"""What a cache of samples raises."""

from __future__ import annotations

from .._errors import BaguaNetError


class CacheUnusable(BaguaNetError):
    """The file is no cache, is damaged, belongs to another user, or is on a file system that cannot hold one."""


class CacheMismatch(CacheUnusable):
    """The file is the cache of another dataset."""


class SampleUnsupported(BaguaNetError, TypeError):
    """A sample or a key has a part of a type that a cache does not store."""
