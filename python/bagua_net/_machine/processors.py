# SPDX-License-Identifier: MIT
"""The processors that the ranks of a host divide among each other."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_STAT = Path("/proc/stat")
#: Columns of /proc/stat: user, nice, system, and what the hypervisor gave to others. Interrupts belong to nobody.
_WORK = (0, 1, 2, 7)


def share(processors: list[int], index: int, of: int) -> set[int]:
    """Part ``index`` of ``of`` parts that differ by at most one processor; with more parts than processors, parts with
    neighbouring numbers have the same processor."""
    first, after = index * len(processors) // of, (index + 1) * len(processors) // of
    return set(processors[first : max(after, first + 1)])


def bind(index: int, of: int) -> None:
    """Restricts this thread, and those that it starts from now on, to its part of the processors that it may use."""
    os.sched_setaffinity(0, share(sorted(os.sched_getaffinity(0)), index, of))


def worked(processors: Collection[int]) -> float:
    """Seconds that these processors have worked for anybody since the machine started; 0 where the kernel does not
    tell."""
    try:
        lines = [line.split() for line in _STAT.read_text().splitlines()]
        wanted = {f"cpu{number}" for number in processors}
        ticks = sum(int(line[1 + column]) for line in lines if line[0] in wanted for column in _WORK)
    except (OSError, ValueError, IndexError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
