# SPDX-License-Identifier: MIT
"""Jobs that show their counters in a directory of the test, and the commands that read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.package import bench_command

SECONDS = 60
_JOB = ["--transport", "bagua", "--min", "1M", "--max", "1G", "--iters", "1000"]


def command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``bagua-net`` with these arguments, which looks into the directory."""
    return subprocess.run(
        [sys.executable, "-m", "bagua_net", *arguments],
        env=bench_command.environment(BAGUA_NET_STATS_DIR=str(directory)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@contextmanager
def job(directory: Path, *, left_alone: bool = False, **variables: str) -> Iterator[dict[int, int]]:
    """Two ranks that move data; their process ids. left_alone: nobody ends the one when the other ends."""
    with bench_command.endless(*_JOB, BAGUA_NET_STATS_DIR=str(directory), **variables) as (launcher, ranks):
        if left_alone:
            launcher.send_signal(signal.SIGSTOP)
        yield ranks


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def own(directory: Path) -> Path:
    """Where the plugin puts the files of this user."""
    return directory / f"bagua-net-stats-{os.geteuid()}"
