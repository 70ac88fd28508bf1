# SPDX-License-Identifier: MIT
"""Memory that this process and its children may still take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .control_groups import with_controller

#: Limit, use, and the rows of memory.stat with what the kernel gives back when memory runs short: files that were read.
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


@dataclass(frozen=True)
class Free:
    bytes: int
    #: whose it is, for a sentence: "this machine"
    of: str


def _rows(path: Path) -> dict[str, int]:
    """Numbers by name; none where the file cannot be read."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) for row in words if len(row) > 1 and row[1].isdecimal()}


def _number(path: Path) -> int | None:
    """None: there is no such file, or no limit."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _left(group: Path, names: tuple[str, str, tuple[str, ...]]) -> int | None:
    limit, used = (_number(group / name) for name in names[:2])
    if limit is None or used is None:
        return None
    stat = _rows(group / "memory.stat")
    return max(0, limit - used + sum(stat.get(name, 0) for name in names[2]))


def free(root: Path = Path("/")) -> Free | None:
    """The least of what the machine has and of what each limit leaves; None: nothing is known."""
    found = []
    available = _rows(root / "proc/meminfo").get("MemAvailable")
    if available is not None:
        found.append(Free(available * 1024, "this machine"))
    found += [
        Free(left, "the memory limit of this container or service")
        for left in (_left(group, _V1 if is_old else _V2) for group, is_old in with_controller("memory", root))
        if left is not None
    ]
    return min(found, key=lambda each: each.bytes, default=None)
