# SPDX-License-Identifier: MIT
"""What `bagua-net top --operations` and `bagua-net export` show of a job's collectives, while a rank is late."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.package import running_jobs
from tests.support import drivers, netns, programs
from tests.support.netns import Host

pytestmark = pytest.mark.gate

CALLS, ELEMENTS = 20, 250_000
#: A rank is late by so long at least.
LATE_US = 3_000_000


def _start(rank: int, host: Host, directory: Path) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    settings = {"BAGUA_NET_STATS_DIR": str(directory), "NCCL_SOCKET_IFNAME": "link0", "OMP_NUM_THREADS": "1"}
    command = [*host.prefix, sys.executable, "-m", "tests.torch_backend.test_seen"]
    return subprocess.Popen(
        command,
        env=drivers.environment({**place, **settings, "PYTHONPATH": programs.search_path()}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _job(directory: Path, on: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks on one host or on two, each of which goes on with a line."""
    with netns.two_hosts() as hosts:
        for number, host in enumerate(hosts, 1):
            host.ip("address", "add", f"10.77.0.{number}/24", "dev", "link0")
        ranks = [_start(rank, hosts[rank % on], directory) for rank in range(2)]
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def _go_on(rank: subprocess.Popen[str]) -> None:
    assert rank.stdin is not None
    print(file=rank.stdin, flush=True)


def _said(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline()


def _allreduce(directory: Path, rank: int) -> dict[str, Any]:
    """The row. age_us: of the call that runs."""
    done = running_jobs.command(directory, "top", "--json", "--interval", "0.6")
    assert done.returncode == 0, done.stderr
    (seen,) = [each for each in json.loads(done.stdout) if each["process"]["rank"] == str(rank)]
    rows = {row["operation"]: row for row in seen["operations"]}
    row = rows.get("allreduce", {"calls": 0, "running": 0, "began_us": 0})
    return {**row, "age_us": seen["process"]["published_us"] - row["began_us"]}


@pytest.mark.parametrize("on", [1, 2], ids=["one-host", "two-hosts"])
def test_a_rank_that_is_late_is_waited_for(tmp_path: Path, on: int) -> None:
    """On one host it is waited for in memory, and no connection moves."""
    found: dict[str, Any] = {}

    def holds(**wanted: int) -> bool:
        found.update(_allreduce(tmp_path, 0))
        return all(found[name] >= least for name, least in wanted.items())

    with _job(tmp_path, on) as ranks:
        assert [_said(rank) for rank in ranks] == ["ready\n"] * 2
        _go_on(ranks[0])
        running_jobs.until(lambda: holds(calls=CALLS, running=1) and found["age_us"] >= LATE_US)
        assert (found["calls"], found["bytes"], found["failed"]) == (CALLS, CALLS * ELEMENTS * 4, 0)
        before, late_us = dict(found), found["age_us"]
        table = running_jobs.command(tmp_path, "top", "--operations", "--once").stdout
        assert re.search(r"^\d+ +0/2 +allreduce +20 .* for \d+\.\d s$", table, re.MULTILINE), table
        _go_on(ranks[1])
        assert [_said(rank) for rank in ranks] == ["met\n"] * 2
        running_jobs.until(lambda: holds(calls=CALLS + 1))
        assert found["running"] == 0
        took, waited = (found[name] - before[name] for name in ("time_us", "waiting_us"))
        assert took >= waited > late_us / 2  # the first polls are no wait
        exported = running_jobs.command(tmp_path, "export", "--once").stdout
        assert re.search(
            r'^bagua_net_operations_total\{operation="allreduce",.*rank="0"\} 21\.0$', exported, re.MULTILINE
        )
        for rank in ranks:
            _go_on(rank)
            assert rank.wait(running_jobs.SECONDS) == 0


def _rank() -> None:
    dist.init_process_group("bagua_net")
    values = torch.ones(ELEMENTS)
    for _ in range(CALLS):
        dist.all_reduce(values)
    print("ready", flush=True)
    sys.stdin.readline()
    dist.all_reduce(values)
    print("met", flush=True)
    sys.stdin.readline()
    dist.destroy_process_group()


if __name__ == "__main__":
    _rank()
