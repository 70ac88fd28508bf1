# SPDX-License-Identifier: MIT
"""The processors that the ranks of a host divide among each other."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path

from .control_groups import with_controller

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


def allowed(root: Path = Path("/")) -> int:
    """How many this process may use: those that it may run on, or as many as a container's limit comes to, rounded
    up."""
    limits = [_limit(group, is_old) for group, is_old in with_controller("cpu", root)]
    return min([len(os.sched_getaffinity(0)), *(math.ceil(limit) for limit in limits if limit is not None)])


def _limit(group: Path, is_old: bool) -> float | None:
    """Processors; None: there is no limit."""
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_old else ("cpu.max",)
    try:
        quota, period = (word for name in names for word in (group / name).read_text().split())
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdecimal() and int(period) > 0 else None
