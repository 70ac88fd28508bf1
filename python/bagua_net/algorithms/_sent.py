# SPDX-License-Identifier: MIT
"""What exact averages send, as algorithms count it."""

from __future__ import annotations


def sent_by_all_reduce(nbytes: float, size: int) -> float:
    """Bytes that each of ``size`` ranks sends in an all-reduce of nbytes: as a ring does it, whatever the backend."""
    return 2 * (size - 1) / size * nbytes
