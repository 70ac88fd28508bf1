# SPDX-License-Identifier: MIT
"""Messages between two hosts, over networks like real ones: each test builds one from namespaces and veth pairs.

The data is checked by tests/drivers/drive_net*.c, as in test_transport.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

V4 = ("10.77.0.1/24", "10.77.0.2/24")
V6 = ("fd77::1/64", "fd77::2/64")
LINK_LOCAL = ("fe80::1/64", "fe80::2/64")


def _address(hosts: tuple[Host, Host], addresses: tuple[str, str], *interfaces: str) -> None:
    for host, address, interface in zip(hosts, addresses, interfaces or ("link0", "link0"), strict=True):
        nodad = ["nodad"] if ":" in address else []
        host.ip("address", "add", address, "dev", interface, *nodad)


def _wrap(rank: int, host: Host, interface: str, settings: Mapping[str, str] | None) -> list[str]:
    variables = {"NCCL_SOCKET_IFNAME": interface} | dict(settings or {})
    return ["--wrap", f"{rank}={host.wrap(on_pci=False, **variables)}"]


def _drive(
    hosts: tuple[Host, Host],
    *options: object,
    api: int = 12,
    procs: int = 2,
    interfaces: tuple[str, str] = ("link0", "link0"),
    settings: Mapping[str, str] | None = None,
    seconds: int = 60,
) -> dict[str, Any]:
    """Every second process runs on the second host."""
    wraps = []
    for rank in range(procs):
        wraps += _wrap(rank, hosts[rank % 2], interfaces[rank % 2], settings)
    built = drivers.build()
    return drivers.net(built, "--api", str(api), "--procs", str(procs), *map(str, options), *wraps, seconds=seconds)


def _log(
    hosts: tuple[Host, Host],
    *options: object,
    interfaces: tuple[str, str] = ("link0", "link0"),
    settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> subprocess.CompletedProcess[str]:
    """Runs a process on each host, which may fail: status, the summary on stdout, the library's log on stderr."""
    built = drivers.build()
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", "60", "--verbose"]
    command += ["--procs", "2", *map(str, options)]
    for rank in range(2):
        command += _wrap(rank, hosts[rank], interfaces[rank], settings[rank])
    return subprocess.run(command, env=drivers.environment({}), capture_output=True, text=True, timeout=80)


@pytest.mark.parametrize("api", variants(12, gate=[4], nightly=[8]))
@pytest.mark.parametrize("addresses", [V4, V6, LINK_LOCAL], ids=["ipv4", "ipv6", "link-local"])
def test_addresses(api: int, addresses: tuple[str, str]) -> None:
    with netns.two_hosts() as hosts:
        _address(hosts, addresses)
        summary = _drive(hosts, "--messages", 500, "--posted-larger", "--unmap", api=api)
        assert summary["messages"] == 2000
        assert hosts[0].sent_bytes("link0") > summary["bytes"] / 4


def test_link_local_with_scopes_that_differ() -> None:
    """The index of an interface means nothing on another host."""
    with netns.two_hosts(links=0) as (a, b):
        b.ip("link", "add", "other0", "type", "veth", "peer", "name", "other1")
        netns.join(a, b, "uplink", "link7")
        assert a.index("uplink") != b.index("link7")
        _address((a, b), LINK_LOCAL, "uplink", "link7")
        assert _drive((a, b), "--messages", 200, interfaces=("uplink", "link7"))["messages"] == 800


def test_two_processes_on_each_host() -> None:
    """Some peers are on the same host, some on the other."""
    with netns.two_hosts() as hosts:
        _address(hosts, V4)
        assert _drive(hosts, "--connections", 12, "--messages", 200, procs=4)["messages"] == 2400


@pytest.mark.parametrize("mtu", [1280, 1500, 9000])
def test_mtu(mtu: int) -> None:
    with netns.two_hosts() as hosts:
        _address(hosts, V4)
        for host in hosts:
            host.ip("link", "set", "link0", "mtu", str(mtu))
        assert _drive(hosts, "--messages", 500)["messages"] == 2000


def test_interfaces_of_different_names() -> None:
    with netns.two_hosts(links=0) as hosts:
        netns.join(*hosts, "ens3", "uplink")
        _address(hosts, V4, "ens3", "uplink")
        assert _drive(hosts, "--messages", 200, interfaces=("ens", "=uplink"))["messages"] == 800


def test_data_stays_on_the_chosen_interface() -> None:
    """Both subnets reach the peer, and the other interface comes first in the routing table."""
    with netns.two_hosts(links=2) as hosts:
        _address(hosts, V4)
        _address(hosts, ("10.78.0.1/24", "10.78.0.2/24"), "link1", "link1")
        before = [host.sent_bytes("link0") for host in hosts]
        summary = _drive(hosts, "--messages", 500, interfaces=("link1", "link1"))
        assert summary["messages"] == 2000
        assert all(host.sent_bytes("link0") - sent < 10_000 for host, sent in zip(hosts, before, strict=True))


def test_interfaces_that_do_not_reach_each_other() -> None:
    """The interfaces chosen on the two hosts are on different subnets: the connection takes the existing route. It logs
    that once for each stream."""
    with netns.two_hosts(links=2) as hosts:
        _address(hosts, V4)
        _address(hosts, ("10.78.0.1/24", "10.78.0.2/24"), "link1", "link1")
        for host in hosts:
            host.sysctl("net.ipv4.conf.all.arp_ignore=1")  # otherwise every interface answers for the others
        one = {"BAGUA_NET_NSTREAMS": "1"}
        options = ["--messages", 200, "--connections", 3]
        done = _log(hosts, *options, interfaces=("link0", "link1"), settings=(one, one))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 600
    assert done.stderr.count("Trying without binding") == 3


@pytest.mark.parametrize(("addresses", "header"), [(V4, "ip"), (V6, "ip6")], ids=["ipv4", "ipv6"])
def test_packets_carry_the_traffic_class(addresses: tuple[str, str], header: str) -> None:
    """All streams' data and acknowledgements arrive with the class. Only a listener's answers to a peer that it does
    not know yet, to each SYN and each HELLO, lack it."""
    connections, streams = 4, 4
    settings = {"BAGUA_NET_MIN_NSTREAMS": str(streams), "BAGUA_NET_TRAFFIC_CLASS": "104"}
    with netns.two_hosts() as hosts:
        _address(hosts, addresses)
        for host in hosts:
            host.count_received(f"{header} dscp 26", f"{header} dscp != 26", f"{header} dscp != 26 meta length > 200")
        summary = _drive(hosts, "--connections", connections, "--messages", 500, settings=settings)
        assert summary["messages"] == connections * 500
        for host in hosts:
            classed, others, large_others = host.received_packets()
            assert classed > 10 * connections * streams
            assert others <= 3 * connections * streams
            assert large_others == 0


@pytest.mark.gate
@pytest.mark.parametrize("silence", variants("dropped", nightly=["nobody"]))
@pytest.mark.parametrize("limit", variants(3, nightly=[14]), ids=["3s", "14s"])
def test_no_answer(silence: str, limit: int) -> None:
    """The kernel may give up earlier, by its own timeout or as no host has the address; the library goes on until its
    own limit, as the warning says. How long that is, is shown by test_connecting.c."""
    settings = ({"BAGUA_NET_CONNECT_TIMEOUT": str(limit)}, {"BAGUA_NET_CONNECT_TIMEOUT": "300"})
    with netns.two_hosts() as hosts:
        _address(hosts, V4)
        for host in hosts:
            host.sysctl("net.ipv4.tcp_syn_retries=2")
        if silence == "nobody":
            hosts[1].ip("link", "set", "link0", "arp", "off")
        else:
            hosts[1].nft("table inet silence { chain in { type filter hook input priority 0; tcp flags syn drop; }; }")
        done = _log(hosts, "--connections", 1, "--messages", 1, settings=settings)
    assert done.returncode != 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARN" in line and "cannot connect" in line]
    assert warnings, done.stderr
    assert all("BAGUA_NET_CONNECT_TIMEOUT" in line for line in warnings)


@pytest.mark.gate
@pytest.mark.alone
@pytest.mark.parametrize("seed", variants(1, nightly=[2]))
@pytest.mark.parametrize("mbits", [[1000] * 8, [1000, 1000, 500, 200, 100, 50]], ids=["equal", "unequal"])
def test_capped_flows(mbits: list[int], seed: int) -> None:
    """Streams of one connection with very different rates."""
    with netns.two_hosts() as hosts:
        _address(hosts, V4)
        for host in hosts:
            try:
                host.cap_flows("link0", mbits, seed)
            except netns.CommandFailed as error:
                netns.needs("cap flows by a hash", error)
        options = ["--messages", 100, "--sizes", "1000000,0,4096,300001,20"]
        summary = _drive(hosts, *options, settings={"BAGUA_NET_MIN_NSTREAMS": "8", "BAGUA_NET_NSTREAMS": "8"})
        assert summary["messages"] == 400
        assert all(sum(carried > 0 for carried in host.capped_bytes("link0")) > 1 for host in hosts)


@pytest.mark.gate
@pytest.mark.parametrize("per_mille", variants(20, nightly=[5]))
@pytest.mark.parametrize("streams", [1, 6])
def test_random_loss(per_mille: int, streams: int) -> None:
    with netns.two_hosts() as hosts:
        _address(hosts, V4)
        for host in hosts:
            try:
                host.drop_received(per_mille)
            except netns.CommandFailed as error:
                netns.needs("drop packets at random", error)
        settings = {
            "BAGUA_NET_MIN_NSTREAMS": str(streams),
            "BAGUA_NET_NSTREAMS": str(streams),
            "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        }
        summary = _drive(hosts, "--messages", 300, "--posted-larger", settings=settings)
        assert summary["messages"] == 1200
        assert sum(host.dropped_packets() for host in hosts) > 0
