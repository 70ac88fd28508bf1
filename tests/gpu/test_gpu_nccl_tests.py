# SPDX-License-Identifier: MIT
"""NVIDIA's nccl-tests over the plugin, where they are installed."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.gpu.gpu_jobs import nccl_log, nccl_tests
from tests.gpu.gpu_jobs.places import SECONDS, gpus


def test_all_reduce_perf_finds_nothing_wrong() -> None:
    found = gpus()
    if isinstance(found, str):
        pytest.skip(found)
    if nccl_tests.missing():
        pytest.skip(nccl_tests.missing())
    done = subprocess.run(
        nccl_tests.command(ranks=2),
        env=nccl_tests.environment(dict(os.environ)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = nccl_tests.parse(done.stdout)
    assert summary.wrong == 0
    assert summary.bus_bandwidth > 0
    assert nccl_log.parse(done.stdout).networks == {"BaguaNet"}
