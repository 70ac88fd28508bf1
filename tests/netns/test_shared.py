# SPDX-License-Identifier: MIT
"""Several jobs over one bottleneck: none uses more streams where they would only take from each other.

Four senders and four receivers, a connection each; every byte is checked. The bottleneck is the link of the senders'
common host, or that of the receivers' (the senders are four hosts then), with one queue for all flows or one for each.
tests/unit/test_scaler_network.c plays the same cases on simulated networks.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import drivers, netns
from tests.support.netns import CommandFailed, Host
from tests.support.tiers import variants

pytestmark = [pytest.mark.gate, pytest.mark.alone]

_JOBS = 4
_MBIT = 400
_MESSAGE = 1_000_000
_MESSAGES = 80
_SECONDS = 60
_POLL_S = 0.02

#: Makes the pairs of hosts that share a link, with fair queues or without.
Network = Callable[[bool], contextlib.AbstractContextManager[list[tuple[Host, Host]]]]


def _address(host: Host, interface: str, address: str) -> None:
    host.ip("address", "add", address, "dev", interface)


def _share(host: Host, interface: str, *, fair: bool, forwarded: bool) -> None:
    try:
        host.share_link(interface, _MBIT, fair=fair, forwarded=forwarded)
    except CommandFailed as error:
        netns.needs("queue flows by a hash", error)


@contextlib.contextmanager
def _one_sender(fair: bool) -> Iterator[list[tuple[Host, Host]]]:
    """Sender and receiver of each job."""
    with netns.two_hosts() as (a, b):
        _address(a, "link0", "10.77.0.1/24")
        _address(b, "link0", "10.77.0.2/24")
        _share(a, "link0", fair=fair, forwarded=False)
        yield [(a, b)] * _JOBS


def _lay(router: Host, host: Host, number: int) -> None:
    netns.join(router, host, f"to{number}", "link0")
    _address(router, f"to{number}", f"10.77.{number}.1/24")
    _address(host, "link0", f"10.77.{number}.2/24")
    host.ip("route", "add", "default", "via", f"10.77.{number}.1")


@contextlib.contextmanager
def _one_receiver(fair: bool) -> Iterator[list[tuple[Host, Host]]]:
    """A router's port to the receivers' host is the bottleneck."""
    with netns.hosts(2 + _JOBS) as (router, receiver, *senders):
        router.sysctl("net.ipv4.ip_forward=1")
        for number, host in enumerate([receiver, *senders]):
            _lay(router, host, number)
        _share(router, "to0", fair=fair, forwarded=True)
        yield [(sender, receiver) for sender in senders]


def _start(pair: tuple[Host, Host]) -> subprocess.Popen[str]:
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(_SECONDS)]
    command += ["--connections", "1", "--messages", str(_MESSAGES), "--sizes", str(_MESSAGE)]
    for rank, host in enumerate(pair):
        command += ["--wrap", f"{rank}={host.wrap(NCCL_SOCKET_IFNAME='link0')}"]
    return subprocess.Popen(
        command, env=drivers.environment({}), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("fair", variants(False, nightly=[True]), ids=["one queue", "fair queues"])
@pytest.mark.parametrize("network", variants(_one_receiver, nightly=[_one_sender]))
def test_streams_do_not_multiply(network: Network, fair: bool) -> None:
    """A job that judges by its own share has 64 streams within some seconds. Here some are on trial, most have one."""
    with network(fair) as pairs:
        receivers = pairs[0][1]
        jobs = [_start(pair) for pair in pairs]
        most = 0
        while any(job.poll() is None for job in jobs):
            most = max(most, receivers.streams())
            time.sleep(_POLL_S)
        for job in jobs:
            out, err = job.communicate()
            assert job.returncode == 0, f"{out}{err}"
    assert _JOBS <= most <= 8 * _JOBS
