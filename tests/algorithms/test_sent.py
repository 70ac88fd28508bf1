# SPDX-License-Identifier: MIT
"""What `bagua-net bench calculate` says that an algorithm sends: what the algorithm counts, and what leaves a host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from bagua_net._bench.workload import models
from tests.algorithms.sent import sent_in_a_step
from tests.package.bench_command import bench
from tests.support import drivers, netns, programs
from tests.support.netns import Host
from tests.support.rank import Here
from tests.support.ranks import Ranks
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

MODEL = "resnet50"

_SECONDS = 200
#: A frame of 1514 bytes has 1448 of payload, and there are some of acknowledgements.
_HEADERS = 1.06


def _counted(here: Here, name: str) -> float:
    return sent_in_a_step(models.shapes(MODEL), name, lambda comm: comm.stats()["bytes"], dist.group.WORLD)


def _calculated(tmp_path: Path, nranks: int) -> dict[str, float]:
    """The bytes that each rank sends, by algorithm."""
    file = tmp_path / "calculated.json"
    done = bench("calculate", "--model", MODEL, "--ranks", str(nranks), "--rate", "10G", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return {row["algorithm"]: row["sent_bytes"] for row in json.loads(file.read_text())["calculated"]["steps"]}


@pytest.mark.parametrize(
    "name",
    variants(
        "ByteGrad(bits=4)",
        nightly=[
            "GradientAllReduce()",
            'GradientAllReduce(wire="bfloat16")',
            "ByteGrad()",
            "QAdam(bits=1)",
            "DiLoCo()",
        ],
    ),
)
def test_an_algorithm_counts_what_is_calculated(ranks: Ranks, tmp_path: Path, name: str) -> None:
    sent = _calculated(tmp_path, ranks.size)[name]
    assert ranks.run(_counted, name) == [pytest.approx(sent, rel=1e-12)] * ranks.size


def _start(rank: int, of: int, hosts: Sequence[Host], backend: str, names: Iterable[str]) -> subprocess.Popen[str]:
    number = rank * len(hosts) // of
    place = {"RANK": str(rank), "WORLD_SIZE": str(of), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    settings = {"NCCL_SOCKET_IFNAME": "link0", "GLOO_SOCKET_IFNAME": "link0", "NCCL_HOSTID": f"host{number}"}
    settings |= {"PYTHONPATH": programs.search_path(), "OMP_NUM_THREADS": "1"}
    command = [*hosts[number].prefix, sys.executable, "-m", "tests.algorithms.sent", backend, "link0", MODEL, *names]
    return subprocess.Popen(command, env=drivers.environment(place | settings), stdout=subprocess.PIPE, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("backend", "nranks"), [("bagua_net", 2), ("gloo", 4)])
def test_what_is_calculated_leaves_through_the_interface(tmp_path: Path, backend: str, nranks: int) -> None:
    """With the headers of frames and packets. Codes of a host with two ranks are as many as those of one."""
    calculated = _calculated(tmp_path, 2)
    if nranks > 2:
        calculated = {name: sent for name, sent in calculated.items() if name.startswith("ByteGrad")}
    with netns.two_hosts() as hosts:
        for number, host in enumerate(hosts, 1):
            host.ip("address", "add", f"10.77.0.{number}/24", "dev", "link0")
        ranks = [_start(rank, nranks, hosts, backend, calculated) for rank in range(nranks)]
        said = [rank.communicate(timeout=_SECONDS)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * nranks
    for counted in map(json.loads, said):
        over = {name: counted[name] / sent for name, sent in calculated.items()}
        assert all(1 < times < _HEADERS for times in over.values()), over
