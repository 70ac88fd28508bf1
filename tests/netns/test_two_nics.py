# SPDX-License-Identifier: MIT
"""Devices of several interfaces between two hosts: the links that carry the data; every byte is checked.

The data is checked by tests/drivers/drive_net*.c, as in test_transport.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

Hosts = tuple[Host, Host]

#: A link with more bytes than this has carried data: more than handshakes need, less than a share of the messages.
A_PART = 5_000_000
HANDSHAKES = 100_000


def _address(hosts: Hosts, link: int, version: int = 4) -> None:
    for number, host in enumerate(hosts, start=1):
        address = [f"10.{77 + link}.0.{number}/24"] if version == 4 else [f"fd{77 + link}::{number}/64", "nodad"]
        host.ip("address", "add", address[0], "dev", f"link{link}", *address[1:])


@contextmanager
def _two_networks() -> Iterator[Hosts]:
    """Two hosts with two links, each of which is an IPv4 network of its own."""
    with netns.two_hosts(links=2) as hosts:
        _address(hosts, 0)
        _address(hosts, 1)
        yield hosts


def _both_carried(hosts: Hosts) -> None:
    for host in hosts:
        assert host.sent_bytes("link0") > A_PART
        assert host.sent_bytes("link1") > A_PART


def _no_way(hosts: Hosts, interface: str) -> None:
    """A connection to the second host through this interface is told that the host is unreachable."""
    rule = f'iifname "{interface}" tcp flags syn / syn,ack reject with icmp type host-unreachable'
    try:
        hosts[1].nft(f"table ip way {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}")
    except netns.CommandFailed as error:
        netns.needs("reject what comes through an interface", error)


def _run(
    hosts: Hosts,
    *options: object,
    bonds: tuple[str, str] = ("1", "1"),
    settings: Mapping[str, str] | None = None,
    others: Mapping[str, str] | None = None,
    api: int = 12,
    on_pci: bool = False,
    sanitizer: str = "",
) -> tuple[dict[str, Any], str]:
    """The summary of a process on each host, and the library's log. The settings are for both hosts, unless the second
    one has others."""
    built = drivers.build(sanitizer)
    limit = built.seconds(60)
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(limit), "--verbose"]
    command += ["--procs", "2", "--api", str(api), *map(str, options)]
    for rank, host in enumerate(hosts):
        variables = {"NCCL_SOCKET_IFNAME": "link", "BAGUA_NET_BOND": bonds[rank]}
        variables |= others if others is not None and rank else settings or {}
        command += ["--wrap", f"{rank}={host.wrap(on_pci=on_pci, **variables)}"]
    done = subprocess.run(command, env=drivers.environment({}), capture_output=True, text=True, timeout=limit + 20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


#: BAGUA_NET_BOND of either end.
_PAIRS = variants(
    pytest.param(("1", "0")),
    nightly=[pytest.param(pair) for pair in (("0", "1"), ("link0,link1", "1"), ("1", "link1,link2"))],
)
LARGE = ("--messages", 60, "--sizes", "4194304,3000001,0,70000")


@pytest.mark.parametrize("bond", variants("1", nightly=["link0,link1", "link1,link0"]))
def test_bond_uses_both(bond: str) -> None:
    with _two_networks() as hosts:
        summary, log = _run(hosts, *LARGE, bonds=(bond, bond))
        assert summary["messages"] == 240
        _both_carried(hosts)
    name = "link1+link0" if bond == "link1,link0" else "link0+link1"
    assert f" over {name}," in log
    assert "WARN" not in log


def test_without_a_bond_the_first_interface_has_all() -> None:
    with _two_networks() as hosts:
        _run(hosts, *LARGE, bonds=("0", "0"))
        assert all(host.sent_bytes("link1") < HANDSHAKES for host in hosts)


def test_interfaces_that_are_not_on_the_list_stay_as_they_are() -> None:
    with netns.two_hosts(links=3) as hosts:
        for link in range(3):
            _address(hosts, link)
        summary, _ = _run(hosts, *LARGE, "--device", 1, bonds=("link2,link1", "link2,link1"))
        assert summary["messages"] == 240
        for host in hosts:
            assert host.sent_bytes("link0") < HANDSHAKES
            assert host.sent_bytes("link1") > A_PART
            assert host.sent_bytes("link2") > A_PART


def test_an_interface_that_is_down_is_left_out_with_a_line() -> None:
    with netns.two_hosts(links=3) as hosts:
        for link in range(3):
            _address(hosts, link)
        for host in hosts:
            host.ip("link", "set", "link1", "down")
        summary, log = _run(hosts, *LARGE, bonds=("link0,link1,link2", "link0,link1,link2"))
        assert summary["messages"] == 240
        assert all(host.sent_bytes("link2") > A_PART for host in hosts)
    lines = [line for line in log.splitlines() if "BAGUA_NET_BOND goes on without link1" in line]
    assert len(lines) == 2
    assert all("link1 (down" in line for line in lines)


@pytest.mark.parametrize("bonds", _PAIRS)
def test_ends_with_different_numbers_of_interfaces(bonds: tuple[str, str]) -> None:
    """Where one end has one address, all interfaces of the other end connect to it."""
    with netns.two_hosts(links=3) as hosts:
        for link in range(3):
            _address(hosts, link)
        summary, _ = _run(hosts, *LARGE, bonds=bonds)
        assert summary["messages"] == 240
        for host, bond in zip(hosts, bonds, strict=True):
            used = {"1": (0, 1, 2), "0": (0,), "link0,link1": (0, 1), "link1,link2": (0,)}[bond]
            assert all(host.sent_bytes(f"link{link}") > A_PART for link in used)


@pytest.mark.parametrize("without", variants("link0", nightly=["link1"]))
def test_a_pair_without_a_way_is_skipped(without: str) -> None:
    """Also where it is the first stream's interface; only the first connection has to find out."""
    with _two_networks() as hosts:
        _no_way(hosts, without)
        summary, log = _run(hosts, *LARGE, "--connections", 8)
        assert summary["messages"] == 480
        assert hosts[0].sent_bytes(without) < hosts[1].sent_bytes(without)
    lines = [line.split("BaguaNet: ")[1] for line in log.splitlines() if "no way from" in line]
    assert lines
    assert all(line.startswith(f"no way from {without} ") for line in lines)
    assert len(lines) == len(set(lines))


def test_two_families() -> None:
    """One link has IPv4 and the other IPv6: every stream connects an interface and an address of the same family."""
    with netns.two_hosts(links=2) as hosts:
        _address(hosts, 0)
        _address(hosts, 1, version=6)
        summary, log = _run(hosts, *LARGE, settings={"BAGUA_NET_MIN_NSTREAMS": "6"})
        assert summary["messages"] == 240
        _both_carried(hosts)
    assert "no way" not in log


@pytest.mark.parametrize("second", ["fe80::b", "fe80::a"], ids=["different", "equal"])
def test_link_local_addresses(second: str) -> None:
    """Such an address is valid only on its own link: both links may even have the same ones."""
    with netns.two_hosts(links=2) as hosts:
        for number, host in enumerate(hosts, start=1):
            host.ip("address", "add", f"fe80::a{number}/64", "dev", "link0", "nodad")
            host.ip("address", "add", f"{second}{number}/64", "dev", "link1", "nodad")
        summary, _ = _run(hosts, *LARGE)
        assert summary["messages"] == 240
        _both_carried(hosts)


@pytest.mark.parametrize("told", [0, 1], ids=["sender", "receiver"])
def test_as_few_streams_as_either_end_is_told(told: int) -> None:
    limits: list[dict[str, str]] = [{}, {}]
    limits[told] = {"BAGUA_NET_NSTREAMS": "1"}
    with _two_networks() as hosts:
        _run(hosts, *LARGE, "--connections", 1, settings=limits[0], others=limits[1])
        assert hosts[0].sent_bytes("link0") > A_PART
        assert hosts[0].sent_bytes("link1") < HANDSHAKES


@pytest.mark.parametrize("api", variants(12, nightly=[9, 10, 11]))
def test_devices_that_nccl_merges(api: int) -> None:
    with _two_networks() as hosts:
        summary, log = _run(hosts, *LARGE, "--merge", 2, "--communicators", 2, bonds=("0", "0"), api=api, on_pci=True)
        assert summary["messages"] == 480
        _both_carried(hosts)
    assert "device 2 is link0+link1" in log
    assert "device 3" not in log


@pytest.mark.parametrize("api", [10, 11, 12])
def test_virtual_interfaces_are_not_merged(api: int) -> None:
    """NCCL would find no network: it is told so, and goes on with both devices."""
    told = pytest.raises(AssertionError, match=r"INFO .* link0\+link1 are not merged: NCCL can place only PCI")
    with _two_networks() as hosts, told:
        _run(hosts, *LARGE, "--merge", 2, bonds=("0", "0"), api=api)


def test_who_forces_nccl_to_merge_virtual_interfaces_is_told_to_stop() -> None:
    with _two_networks() as hosts:
        forced = {"NCCL_NET_FORCE_MERGE": "link0,link1"}
        with pytest.raises(AssertionError, match=r"WARN .* unset NCCL_NET_FORCE_MERGE=link0,link1"):
            _run(hosts, *LARGE, "--merge", 2, bonds=("0", "0"), settings=forced)


def test_virtual_interfaces_that_nccl_can_merge() -> None:
    """2.24 and 2.25 place them."""
    with _two_networks() as hosts:
        summary, _ = _run(hosts, *LARGE, "--merge", 2, bonds=("0", "0"), api=9)
        assert summary["messages"] == 240
        _both_carried(hosts)


@pytest.mark.parametrize("scenario", ["merged_device", "merge_refused"])
@pytest.mark.parametrize("api", [9, 10, 11, 12])
def test_merging_as_each_version_sees_it(api: int, scenario: str) -> None:
    with _two_networks() as hosts:
        built = drivers.build()
        command = [*hosts[0].pci_prefix, str(built.drive_contract), "--lib", str(built.library), "--api", str(api)]
        done = subprocess.run(
            [*command, scenario],
            env=drivers.environment({"NCCL_SOCKET_IFNAME": "link"}),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.sanitize
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizer", variants("address", nightly=["thread"]))
def test_sanitized(sanitizer: str) -> None:
    with _two_networks() as hosts:
        _no_way(hosts, "link0")
        summary, _ = _run(hosts, *LARGE, "--communicators", 2, "--stagger", sanitizer=sanitizer)
        assert summary["messages"] == 480
        summary, _ = _run(hosts, *LARGE, "--merge", 2, bonds=("0", "0"), on_pci=True, sanitizer=sanitizer)
        assert summary["messages"] == 240
