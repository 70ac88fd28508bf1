# SPDX-License-Identifier: MIT
"""NCCL's files in /dev/shm. It removes each soon after making it; a process that is killed in between leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_PREFIX = "/dev/shm/nccl-"


def of(processes: Iterable[int]) -> set[Path]:
    """The files that these processes have mapped and not removed. To be asked before they are killed."""
    return {Path(name) for pid in processes for name in _mapped(pid) if name.startswith(_PREFIX)}


def _mapped(pid: int) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line[line.index("/") :] for line in lines if "/" in line and not line.endswith(" (deleted)")]


def remove(files: Iterable[Path]) -> None:
    """Removes what is left of them, once their processes have ended."""
    for path in files:
        path.unlink(missing_ok=True)
