# SPDX-License-Identifier: MIT
"""Zerocopy sends between two hosts, with default settings: tried where the path is short, given up where the kernel
copies anyway, as on a virtual cable, or refuses. Every byte is checked, as in test_two_hosts.py.

A network card whose kernel does not copy is not available here: tests/unit/ alone covers that side of the choice.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host

pytestmark = [pytest.mark.gate, pytest.mark.alone]

_CONNECTIONS = 4
_MESSAGES = 300


def _drive(hosts: tuple[Host, Host], **settings: str) -> tuple[int, str]:
    """Messages of 1 MB and of 10 B from each host to the other: how many arrived, and the library's log."""
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", "60", "--verbose", "--unmap"]
    command += ["--connections", str(_CONNECTIONS), "--messages", str(_MESSAGES), "--sizes", "1000000,10"]
    for rank, host in enumerate(hosts):
        host.ip("address", "add", f"10.77.0.{rank + 1}/24", "dev", "link0")
        command += ["--wrap", f"{rank}={host.wrap(on_pci=False, NCCL_SOCKET_IFNAME='link0', **settings)}"]
    done = subprocess.run(command, env=drivers.environment({}), capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["messages"], done.stderr


def test_given_up_where_the_kernel_copies() -> None:
    with netns.two_hosts() as hosts:
        messages, log = _drive(hosts)
    assert messages == _CONNECTIONS * _MESSAGES
    # Not for every connection: on a busy machine a path may look long, and then it is not tried.
    assert 1 <= log.count("go with a copy: the kernel copies all the same") <= _CONNECTIONS


@pytest.mark.parametrize("zerocopy", ["-1", "1"])
def test_a_kernel_that_refuses(zerocopy: str) -> None:
    """No room for notifications: data is sent as without zerocopy."""
    with netns.two_hosts() as hosts:
        try:
            for host in hosts:
                host.sysctl("net.core.optmem_max=0")
        except netns.CommandFailed as error:
            netns.needs("limit the option memory of a namespace", error)
        messages, log = _drive(hosts, BAGUA_NET_ZEROCOPY=zerocopy)
    assert messages == _CONNECTIONS * _MESSAGES
    refusals = log.count("go with a copy: the kernel's limit is reached (ulimit -l, net.core.optmem_max)")
    assert 1 <= refusals <= _CONNECTIONS if zerocopy == "-1" else refusals == 0


def test_never() -> None:
    with netns.two_hosts() as hosts:
        messages, log = _drive(hosts, BAGUA_NET_ZEROCOPY="0")
    assert messages == _CONNECTIONS * _MESSAGES
    assert "a copy" not in log
