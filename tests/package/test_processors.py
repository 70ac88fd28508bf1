# SPDX-License-Identifier: MIT
"""The shares of processors cover them all, without overlap where there are enough; their work is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_net._machine.processors import allowed, share, worked

_PROCESSORS = st.lists(st.integers(0, 500), min_size=1, max_size=70, unique=True)


@given(_PROCESSORS, st.integers(1, 100))
def test_shares(processors: list[int], of: int) -> None:
    parts = [share(processors, index, of) for index in range(of)]
    assert set().union(*parts) == set(processors)
    if of <= len(processors):
        assert sum(map(len, parts)) == len(processors)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(len(part) == 1 for part in parts)
        counts = [parts.count({processor}) for processor in processors]
        assert max(counts) - min(counts) <= 1


def test_a_process_keeps_to_its_share() -> None:
    code = "import os; from bagua_net._machine import processors; processors.bind(1, 1000)"
    code += "; print(len(os.sched_getaffinity(0)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_the_work_of_processors_includes_that_of_this_process() -> None:
    everyone = range(os.cpu_count() or 1)
    assert worked(everyone) > sum(os.times()[:2])
    assert worked([]) == 0


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "900000 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/7\n0::/",
                "sys/fs/cgroup/cpu/docker/7/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/docker/7/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
    ],
)
def test_a_container_may_use_as_many_as_its_limit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert allowed(tmp_path) == wanted
