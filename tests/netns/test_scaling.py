# SPDX-License-Identifier: MIT
"""The number of streams of a connection between two hosts: more while they carry more, and one where that suffices.

One process on the first host sends and one on the second receives; every byte is checked. A test waits for events while
they run: the network is capped, so that the data takes some seconds even on the fastest machine.
"""

from __future__ import annotations

import contextlib
import json
import operator
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = [pytest.mark.gate, pytest.mark.alone]

Hosts = tuple[Host, Host]
Settings = Mapping[str, str]

_ADDRESSES = ("10.77.0.1/24", "10.77.0.2/24")
_MESSAGE = 1_000_000
_SECONDS = 60
_POLL_S = 0.02
_LEVELS = re.compile(r"(\d+) streams? per connection .* (\d+) before")


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:  # closed since
        return False


@dataclass(frozen=True)
class _Job:
    """A running sender on the first host and receiver on the second."""

    hosts: Hosts
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    """The lines of both ends, after the end of the job."""

    def streams(self) -> tuple[int, int]:
        sender, receiver = self.hosts
        return sender.streams(), receiver.streams()

    def descriptors(self) -> list[int]:
        """The number of open sockets of each process, of any kind and in any state."""
        hub = self.process.pid
        ranks = Path(f"/proc/{hub}/task/{hub}/children").read_text().split()
        return [sum(map(_is_socket, Path(f"/proc/{rank}/fd").iterdir())) for rank in ranks]

    def wait(self, until: Callable[[], bool]) -> None:
        """Fails if all data arrives before that."""
        while not until():
            if self.process.poll() is not None:
                out, err = self.process.communicate()
                pytest.fail(f"it did not happen while data moved\n{out}{err}", pytrace=False)
            time.sleep(_POLL_S)

    def most_streams(self) -> int:
        """The highest number of streams until the end of the job."""
        most = 0
        while self.process.poll() is None:
            most = max(most, *self.streams())
            time.sleep(_POLL_S)
        return most


@contextlib.contextmanager
def _job(hosts: Hosts, messages: int, settings: tuple[Settings, Settings] = ({}, {})) -> Iterator[_Job]:
    """One connection. The end of the block waits for the rest of the data and checks the summary."""
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(_SECONDS), "--verbose"]
    command += ["--connections", "1", "--messages", str(messages), "--sizes", str(_MESSAGE)]
    for rank in range(2):
        variables = {"NCCL_SOCKET_IFNAME": "link0"} | dict(settings[rank])
        command += ["--wrap", f"{rank}={hosts[rank].wrap(on_pci=False, **variables)}"]
    with subprocess.Popen(
        command, env=drivers.environment({}), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            job = _Job(hosts, process)
            yield job
            out, err = process.communicate(timeout=_SECONDS + 20)
            job.log.extend(err.splitlines())
        finally:
            process.kill()
    assert process.returncode == 0, f"{out}{err}"
    assert json.loads(out)["messages"] == messages


@contextlib.contextmanager
def _two_hosts(addresses: tuple[str, str] = _ADDRESSES) -> Iterator[Hosts]:
    with netns.two_hosts() as hosts:
        for host, address in zip(hosts, addresses, strict=True):
            host.ip("address", "add", address, "dev", "link0")
        yield hosts


def _cap_flows(host: Host, classes: int = 16, mbit: int = 100) -> None:
    try:
        host.cap_flows("link0", [mbit] * classes, seed=1)
    except netns.CommandFailed as error:
        netns.needs("cap flows by a hash", error)


@pytest.mark.parametrize("tick_ms", variants(10, nightly=[10000]))
def test_more_streams_under_flow_caps(tick_ms: int) -> None:
    """Streams are read as often, however seldom the control thread looks after connections that nobody polls."""
    settings = {"BAGUA_NET_CONTROL_TICK": str(tick_ms)}
    with _two_hosts() as hosts:
        _cap_flows(hosts[0])
        with _job(hosts, 120, (settings, settings)) as job:
            job.wait(lambda: min(job.streams()) > 1)
        assert sum(carried > _MESSAGE for carried in hosts[0].capped_bytes("link0")) > 1


def test_the_congestion_control_wins_over_the_routes() -> None:
    available = set(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()) - {"reno"}
    if not available:
        pytest.skip("this kernel has no congestion control but reno")
    with _two_hosts() as hosts:
        for host in hosts:
            host.ip("route", "replace", "10.77.0.0/24", "dev", "link0", "congctl", min(available))
        _cap_flows(hosts[0])
        settings = {"BAGUA_NET_CONGESTION": "reno"}
        with _job(hosts, 20, (settings, settings)) as job:
            job.wait(lambda: min(job.streams()) > 0)
            # The receiver's may be read before it has identified the stream.
            job.wait(lambda: hosts[0].congestion_controls() | hosts[1].congestion_controls() == {"reno"})


@pytest.mark.nightly
def test_one_stream_without_caps() -> None:
    with _two_hosts() as hosts, _job(hosts, messages=2000) as job:
        assert job.most_streams() == 1


@pytest.mark.parametrize("limited", variants(1, nightly=[0]), ids=["receiver", "sender"])
def test_a_maximum_of_either_end(limited: int) -> None:
    settings: list[Settings] = [{}, {}]
    settings[limited] = {"BAGUA_NET_NSTREAMS": "2"}
    with _two_hosts() as hosts:
        _cap_flows(hosts[0])
        with _job(hosts, 80, (settings[0], settings[1])) as job:
            assert job.most_streams() == 2


def test_a_maximum_of_one() -> None:
    with _two_hosts() as hosts:
        _cap_flows(hosts[0])
        with _job(hosts, 25, ({}, {"BAGUA_NET_NSTREAMS": "1"})) as job:
            assert job.most_streams() == 1


def test_a_minimum_is_there_at_once() -> None:
    least = 5
    with _two_hosts() as hosts:
        hosts[0].cap_link("link0", 200)
        with _job(hosts, 60, ({"BAGUA_NET_MIN_NSTREAMS": str(least)}, {})) as job:
            job.wait(lambda: job.streams() == (least, least))


@pytest.mark.nightly
def test_streams_that_carry_no_more_are_closed() -> None:
    """All flows share one class. Both ends close them while the connection goes on."""
    with _two_hosts() as hosts:
        _cap_flows(hosts[0], classes=1, mbit=200)
        with _job(hosts, messages=300) as job:
            job.wait(lambda: min(job.streams()) > 1)
            several = job.descriptors()
            job.wait(lambda: job.streams() == (1, 1) and all(map(operator.lt, job.descriptors(), several)))


def test_the_next_job_begins_where_the_last_one_ended() -> None:
    """Between addresses of which nothing can be known yet. The second job ends before it could have tried anything."""
    remembers = ({"BAGUA_NET_PATH_MEMORY": "1"}, {"BAGUA_NET_PATH_MEMORY": "1"})
    network = f"10.{random.randrange(80, 250)}.{random.randrange(256)}"
    with _two_hosts((f"{network}.1/24", f"{network}.2/24")) as hosts:
        _cap_flows(hosts[0])
        with _job(hosts, 120, remembers) as first:
            pass
        before = hosts[0].capped_bytes("link0")
        with _job(hosts, 3, remembers) as second:
            pass
        carried = [now - then for now, then in zip(hosts[0].capped_bytes("link0"), before, strict=True)]
    assert not any("as earlier" in line for line in first.log)
    assert any(re.search(r"\d streams per connection .* as earlier", line) for line in second.log), second.log
    assert sum(each > 3 * _MESSAGE / 50 for each in carried) > 2


def test_a_trial_whose_streams_get_no_answer_ends() -> None:
    """A firewall drops their SYNs. A stream that is needed would be tried for longer than the data lasts."""
    with _two_hosts() as hosts:
        _cap_flows(hosts[0])
        hosts[1].take_one_connection()
        with _job(hosts, messages=160) as job:
            job.wait(lambda: job.streams() == (1, 1))
        text = "\n".join(job.log)
        after = text.partition(": no answer")[2]
        assert after, text
        levels = [(int(now), int(before)) for now, before in _LEVELS.findall(after)]
        assert any(now < before for now, before in levels), text
