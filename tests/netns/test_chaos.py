# SPDX-License-Identifier: MIT
"""Messages whose every byte is checked (tests/drivers/drive_net.c) on a network that misbehaves (support/chaos.py):
nothing is lost, no rank fails, and none waits for ever.

    BNET_CHAOS_SEED=7 pytest tests/netns/test_chaos.py        # again what one seed has shown
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

import pytest

from tests.support import chaos, drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_ADDRESSES = ("10.77.0.1/24", "10.77.0.2/24")
#: A run whose ranks have not ended by then has one that waits for ever: nothing that happens takes so long.
_DEADLINE_S = 120
_SETTINGS = {"NCCL_SOCKET_IFNAME": "link0", "BAGUA_NET_MIN_NSTREAMS": "4", "BAGUA_NET_REPAIR": "1"}


@dataclass
class _Total:
    messages: int = 0
    repairs: int = 0
    resets: int = 0


def _run(hosts: tuple[Host, Host], ranks: int, seed: int, total: _Total) -> None:
    """One job: connections are made, messages of random sizes move on them, and they are closed."""
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(_DEADLINE_S), "--verbose"]
    command += ["--procs", str(ranks), "--connections", str(2 * ranks), "--messages", "150"]
    command += ["--order", "random", "--together", "--seed", str(seed)]
    for rank in range(ranks):
        command += ["--wrap", f"{rank}={hosts[rank % 2].wrap(on_pci=False, **_SETTINGS)}"]
    done = subprocess.run(
        command, env=drivers.environment({}), capture_output=True, text=True, timeout=_DEADLINE_S + 20
    )
    told = "\n".join(line for line in done.stderr.splitlines() if "INFO" not in line)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{told}"
    total.messages += 300 * ranks
    total.repairs += done.stderr.count("another one is in its place")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seconds", variants(30, nightly=[pytest.param(1800, marks=pytest.mark.timeout(2400))]))
def test_nothing_is_noticed(ranks: int, seconds: int) -> None:
    seed = int(os.environ.get("BNET_CHAOS_SEED", "1"))
    total = _Total()
    until = time.monotonic() + seconds
    with netns.two_hosts() as hosts:
        for host, address in zip(hosts, _ADDRESSES, strict=True):
            host.ip("address", "add", address, "dev", "link0")
        while time.monotonic() < until:
            with chaos.going_on(hosts, ranks, seed) as log:
                try:
                    _run(hosts, ranks, seed, total)
                finally:
                    print(f"seed {seed}: {'; '.join(log.done)}")
            total.resets += log.resets
            seed += 1
    print(f"{total}")
    assert total.repairs > 0, "nothing was reset"
