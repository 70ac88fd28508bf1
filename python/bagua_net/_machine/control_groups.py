# SPDX-License-Identifier: MIT
"""The control groups of this process, in which a container or a service has its limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def with_controller(name: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """The directory of each group, from this process's own to the topmost that it can see, and whether it is of version
    1, whose files have other names.

    Args:
        name: of the controller, "memory" for example.
        root: where /proc and /sys are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and name not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (name if controllers else "")
        group = top / path.lstrip("/")
        while group.is_relative_to(top):
            yield group, controllers != ""
            group = group.parent
