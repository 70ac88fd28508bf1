# SPDX-License-Identifier: MIT
"""The processors that the ranks of a host divide among each other."""

from __future__ import annotations

import os


def share(processors: list[int], index: int, of: int) -> set[int]:
    """Part ``index`` of ``of`` parts that differ by at most one processor; with more parts than processors, parts with
    neighbouring numbers have the same processor."""
    first, after = index * len(processors) // of, (index + 1) * len(processors) // of
    return set(processors[first : max(after, first + 1)])


def bind(index: int, of: int) -> None:
    """Restricts this thread, and those that it starts from now on, to its part of the processors that it may use."""
    os.sched_setaffinity(0, share(sorted(os.sched_getaffinity(0)), index, of))
