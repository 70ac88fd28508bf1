# SPDX-License-Identifier: MIT
"""Messages that fit into a socket's buffer, one at a time, as in a collective of small tensors: the connection never
has more to send than its stream accepts, and yet it waits for the network.

An allreduce runs between two hosts until the awaited event.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = [pytest.mark.gate, pytest.mark.alone]

Hosts = tuple[Host, Host]

_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_PATIENCE_S = 60
_POLL_S = 0.02
_PROOF = 20_000_000  # bytes


@contextlib.contextmanager
def _two_hosts() -> Iterator[Hosts]:
    with netns.two_hosts() as hosts:
        for host, address in zip(hosts, _ADDRESSES, strict=True):
            host.ip("address", "add", f"{address}/24", "dev", "link0")
        yield hosts


@contextlib.contextmanager
def _allreduce(hosts: Hosts, size: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Repeats the allreduce until the end of the block."""
    drivers.build()
    command = [sys.executable, "-m", "bagua_net", "bench", "--transport", "bagua", "--min", size, "--max", size]
    command += ["--warmup", "100000000", "--ifname", "link0", "--ranks", "2", "--rendezvous", f"{_ADDRESSES[0]}:29600"]
    environment = drivers.environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, host in enumerate(hosts):
            process = subprocess.Popen(
                [*host.prefix, *command, "--rank", str(rank)],
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        yield ranks


def _wait(ranks: list[subprocess.Popen[str]], until: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not until():
        for rank in ranks:
            if rank.poll() is not None:
                pytest.fail(f"a rank has ended\n{rank.communicate()[0]}", pytrace=False)
        assert time.monotonic() < end, "it did not happen"
        time.sleep(_POLL_S)


@pytest.mark.parametrize("mbit", variants(10, nightly=[50]))
def test_a_stream_in_a_slow_class_is_left(mbit: int) -> None:
    """The first stream gets a slow class while data moves; later streams do not."""
    with _two_hosts() as hosts, _allreduce(hosts, "16K") as ranks:
        _wait(ranks, lambda: hosts[0].sent_bytes("link0") > _PROOF)
        try:
            hosts[0].cap_known_flows("link0", mbit)
        except netns.CommandFailed as error:
            netns.needs("cap flows by their ports", error)
        _wait(ranks, lambda: hosts[0].capped_bytes("link0")[1] > _PROOF)


def test_more_streams_where_each_is_capped() -> None:
    """A message that takes one class many milliseconds."""
    with _two_hosts() as hosts:
        try:
            hosts[0].cap_flows("link0", [20] * 16, seed=1)
        except netns.CommandFailed as error:
            netns.needs("cap flows by a hash", error)
        with _allreduce(hosts, "64K") as ranks:
            _wait(ranks, lambda: sum(carried > _PROOF // 20 for carried in hosts[0].capped_bytes("link0")) > 2)


def test_streams_that_small_messages_gain_nothing_by_are_closed() -> None:
    """All flows share a narrow class. A fresh flow's handshake passes, so more streams are tried."""
    with _two_hosts() as hosts, _allreduce(hosts, "16K") as ranks:
        _wait(ranks, lambda: hosts[0].sent_bytes("link0") > _PROOF)
        alone = hosts[0].streams()
        try:
            hosts[0].cap_flows("link0", [50], seed=1)
        except netns.CommandFailed as error:
            netns.needs("cap flows by a hash", error)
        _wait(ranks, lambda: hosts[0].streams() > alone)
        _wait(ranks, lambda: hosts[0].streams() == alone)
