# SPDX-License-Identifier: MIT
"""Messages whose every byte is checked (tests/drivers/drive_net.c), collectives of real NCCL and training in torch on
a network that misbehaves (support/chaos.py): nothing is lost, no rank fails, and none waits for ever.

    BNET_CHAOS_SEED=7 pytest tests/netns/test_chaos.py        # again what one seed has shown
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.package import nccl_here
from tests.strangers import here
from tests.support import chaos, drivers, jobs_launch, netns
from tests.support.jobs_launch import Command
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_ADDRESSES = ("10.77.0.1/24", "10.77.0.2/24")
#: A run whose ranks have not ended by then has one that waits for ever: nothing that happens takes so long.
_DEADLINE_S = 240
_SETTINGS = {"NCCL_SOCKET_IFNAME": "link0", "BAGUA_NET_MIN_NSTREAMS": "4"}
#: Where only the plugin's connections are met, and not gloo's and those by which ranks find each other, which have the
#: kernel's ports.
_PORTS = "21000-21999"
_PLAN = chaos.Plan(("resets", "resets", "cuts", "rates"), longest=0.5, ports=_PORTS)
_SEED = int(os.environ.get("BNET_CHAOS_SEED", "1"))


@dataclass
class _Total:
    messages: int = 0
    repairs: int = 0
    resets: int = 0


def _run(
    hosts: tuple[Host, Host], ranks: int, messages: int, seed: int, total: _Total, settings: dict[str, str]
) -> None:
    """One job: connections are made, messages of random sizes move on them, and they are closed."""
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(_DEADLINE_S), "--verbose"]
    command += ["--procs", str(ranks), "--connections", str(2 * ranks), "--messages", str(messages)]
    command += ["--order", "random", "--together", "--seed", str(seed)]
    for rank in range(ranks):
        command += ["--wrap", f"{rank}={hosts[rank % 2].wrap(on_pci=False, **_SETTINGS, **settings)}"]
    done = subprocess.run(
        command, env=drivers.environment({}), capture_output=True, text=True, timeout=_DEADLINE_S + 20
    )
    told = "\n".join(line for line in done.stderr.splitlines() if "INFO" not in line)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{told}"
    total.messages += 2 * ranks * messages
    total.repairs += done.stderr.count("another one is in its place")


_SHORT = (30, 150, chaos.Plan())
_LONG = (900, 8000, chaos.Plan(("resets", *chaos.KINDS), longest=2.0))


@pytest.mark.parametrize(
    ("ranks", "encrypts", "seconds", "messages", "plan"),
    variants(
        pytest.param(2, False, *_SHORT, id="2"),
        pytest.param(4, True, *_SHORT, id="4-encrypted"),
        nightly=[
            pytest.param(2, True, *_SHORT, id="2-encrypted"),
            pytest.param(4, False, *_SHORT, id="4"),
            pytest.param(4, True, *_LONG, id="long", marks=pytest.mark.timeout(1500)),
        ],
    ),
)
def test_nothing_is_noticed(
    tmp_path: Path, ranks: int, encrypts: bool, seconds: int, messages: int, plan: chaos.Plan
) -> None:
    secret = here.secret_file(tmp_path, b"the secret of this test") if encrypts else ""
    settings = {"BAGUA_NET_SECRET_FILE": secret, "BAGUA_NET_ENCRYPT": str(int(encrypts))}
    seed = _SEED
    total = _Total()
    until = time.monotonic() + seconds
    with netns.two_hosts() as hosts:
        for host, address in zip(hosts, _ADDRESSES, strict=True):
            host.ip("address", "add", address, "dev", "link0")
        # A few resets may all come while a job starts or ends.
        while time.monotonic() < until or not total.repairs:
            with chaos.going_on(hosts, ranks, seed, plan) as log:
                try:
                    _run(hosts, ranks, messages, seed, total, settings)
                finally:
                    print(f"seed {seed}: {'; '.join(log.done)}")
            total.resets += log.resets
            seed += 1
    print(f"{total}")


def _job(commands: Callable[[list[jobs_launch.Host]], list[Command]], seconds: int) -> str:
    """What the first one has printed, with resets meanwhile."""
    with jobs_launch.hosts(2) as hosts:
        spaces = [host.space for host in hosts if host.space]
        with chaos.going_on(spaces, len(hosts), _SEED, _PLAN) as log:
            printed = jobs_launch.run(commands(hosts), seconds)
    print(f"{log.resets} resets: {'; '.join(log.done)}")
    assert log.resets > 0
    return printed


_PLUGIN = {"BAGUA_NET_PORT_RANGE": _PORTS, "BAGUA_NET_MIN_NSTREAMS": "4"}


@pytest.mark.parametrize(("op", "iterations"), variants(("allreduce", 40), nightly=[("all_to_all", 400)]))
def test_nccl_notices_nothing(op: str, iterations: int) -> None:
    """Each element of each result is checked."""
    library = nccl_here.library()

    def commands(hosts: list[jobs_launch.Host]) -> list[Command]:
        bench = ["-m", "bagua_net", "bench", "nccl", "--libnccl", str(library), "--transport", "nccl+bagua", "--op", op]
        bench += ["--ranks", "2", "--rendezvous", f"{hosts[0].address}:40000", "--ifname", "link0", "--rounds", "1"]
        bench += ["--min", "64K", "--max", "16M", "--factor", "16", "--iters", str(iterations)]
        return [Command(host, [sys.executable, *bench, "--rank", str(host.number)], _PLUGIN) for host in hosts]

    assert "0 wrong" in _job(commands, 300)


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["ddp_digits.py", "fsdp_digits.py"])
def test_training_notices_nothing(script: str) -> None:
    """The same job over gloo, whose connections are left alone, has the same losses."""
    jobs_launch.needs("torch", "sklearn")

    def commands(hosts: list[jobs_launch.Host]) -> list[Command]:
        launched = [jobs_launch.torchrun(host, len(hosts), script) for host in hosts]
        return [replace(command, settings=_PLUGIN) for command in launched]

    assert _job(commands, 300).rstrip().endswith("the losses are the same")
