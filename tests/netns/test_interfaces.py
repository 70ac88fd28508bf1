# SPDX-License-Identifier: MIT
"""Which interfaces become devices. Each case has real interfaces in a separate network namespace.

The links are veth pairs, their far ends in a second namespace, because every kernel has them and they have a carrier.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bagua_net
from tests.support import nccl_wheels, netns

PACKAGES = Path(bagua_net.__file__).resolve().parents[1]
_SCAN = "import dataclasses, json; from bagua_net._machine import interfaces\n" + (
    "print(json.dumps([dataclasses.asdict(row) for row in interfaces.scan()]))"
)
#: The interfaces that NCCL's own Socket network takes, in the given library; none where its init fails.
_NCCL_SCAN = """
import ctypes, json, pathlib, sys
from bagua_net._nccl import socket_network
table = socket_network.inspect(pathlib.Path(sys.argv[1]))
assert table.api == 12
functions = (ctypes.c_void_p * 4).from_address(socket_network.load(table))
pointer = ctypes.c_void_p
init = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_uint64, pointer, pointer, pointer)(functions[1])
devices = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(functions[2])
properties = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, pointer)(functions[3])
count, first_field, names = ctypes.c_int(), (ctypes.c_char_p * 64)(), []
if init(ctypes.byref(pointer()), 0, None, None, None) == 0 and devices(ctypes.byref(count)) == 0:
    for device in range(count.value):
        assert properties(device, ctypes.byref(first_field)) == 0
        names.append(first_field[0].decode())
print(json.dumps(names))
"""


class Namespace:
    """A network namespace, and a second one with the far ends of its links."""

    def __init__(self, near: netns.Host, far: netns.Host) -> None:
        self.near = near
        self._far = far

    def ip(self, *args: str) -> str:
        try:
            return self.near.ip(*args)
        except netns.CommandFailed as error:
            if "Unknown device type" in str(error):
                pytest.skip(f"this kernel has no interfaces of that kind: ip {' '.join(args)}")
            raise

    def link(self, name: str, *addresses: str, up: bool = True, carrier: bool = True) -> None:
        """Adds a link with these addresses and waits until it is in the requested state."""
        self.ip("link", "add", name, "type", "veth", "peer", "name", f"far-{name}", "netns", self._far.name)
        if carrier:
            self._far.ip("link", "set", f"far-{name}", "up")
        self.settle(name, *addresses, up=up, carrier=carrier)

    def settle(self, name: str, *addresses: str, up: bool = True, carrier: bool = True) -> None:
        self.ip("link", "set", name, "addrgenmode", "none")
        if up:
            self.ip("link", "set", name, "up")
        for address in addresses:
            self.ip("address", "add", *address.split(), "dev", name, *(["nodad"] if ":" in address.split()[0] else []))
        if up and carrier:
            self.await_carrier(name)

    def await_carrier(self, name: str) -> None:
        """The kernel raises IFF_RUNNING a moment after both ends are up."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            (row,) = json.loads(self.ip("-json", "link", "show", "dev", name))
            if row["operstate"] in ("UP", "UNKNOWN"):
                return
            time.sleep(0.005)
        pytest.fail(f"{name} has no carrier after 10 s")

    def python(self, program: str, *args: str, **env: str) -> Any:
        """The JSON output of a program in this namespace; its NCCL variables are only those of ``env``."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
        path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [*self.near.prefix, sys.executable, "-c", program, *args],
            env=kept | {"PYTHONPATH": path} | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def scan(self, **env: str) -> list[dict[str, Any]]:
        """The rows of ``bnet_interface_scan`` in this namespace."""
        rows: list[dict[str, Any]] = self.python(_SCAN, **env)
        return rows


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with netns.hosts(2) as (near, far):
        yield Namespace(near, far)


@dataclass(frozen=True)
class Link:
    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True
    carrier: bool = True


@dataclass(frozen=True)
class Case:
    what: str
    links: tuple[Link, ...]
    #: (name, address) of every device, in NCCL's order
    devices: list[tuple[str, str]]
    #: interface that is left out, and part of the reason
    rejected: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    #: False: NCCL takes management ports, names an interface twice, or refuses ::1
    like_nccl: bool = True


ETH0 = Link("eth0", ("10.77.0.1/24",))
ETH1 = Link("eth1", ("10.77.1.1/24",))
BOTH = Link("eth0", ("10.77.0.1/24", "fd77::1/64", "fe80::77/64"))
BOTH_OTHER = Link("eth1", ("10.77.1.1/24", "fd78::1/64"))
LOOPBACK = ("lo", "127.0.0.1")

CASES = [
    Case("only loopback", (), [LOOPBACK]),
    Case(
        "kernel order, loopback left out",
        (ETH1, ETH0),
        [("eth1", "10.77.1.1"), ("eth0", "10.77.0.1")],
        {"lo": "loopback, while others exist"},
    ),
    Case(
        "IPv4 interfaces before those with IPv6 alone",
        (Link("eth0", ("fd77::1/64",)), ETH1),
        [("eth1", "10.77.1.1"), ("eth0", "fd77::1")],
    ),
    Case("IPv4 first on one interface", (BOTH,), [("eth0", "10.77.0.1")]),
    Case("IPv6 on request", (BOTH,), [("eth0", "fd77::1")], env={"NCCL_SOCKET_FAMILY": "AF_INET6"}),
    Case("a global address before link-local", (Link("eth0", ("fe80::77/64", "fd77::1/64")),), [("eth0", "fd77::1")]),
    Case("link-local alone, with its scope", (Link("eth0", ("fe80::77/64",)),), [("eth0", "fe80::77%eth0")]),
    Case(
        "link-local beside a better one",
        (ETH0, Link("idrac", ("169.254.0.2/16",)), Link("veth3f", ("fe80::3/64",))),
        [("eth0", "10.77.0.1")],
        {"idrac": "only a link-local address", "veth3f": "NCCL_SOCKET_IFNAME==veth3f selects it"},
        like_nccl=False,
    ),
    Case(
        "no address of that family",
        (BOTH, ETH1),
        [("eth0", "fd77::1")],
        {"eth1": "no IPv6 address, and NCCL_SOCKET_FAMILY=AF_INET6"},
        {"NCCL_SOCKET_FAMILY": "AF_INET6"},
    ),
    Case("IPv6 loopback", (), [("lo", "::1")], env={"NCCL_SOCKET_FAMILY": "AF_INET6"}, like_nccl=False),
    Case(
        "a second address has a label",
        (Link("eth0", ("10.77.0.1/24", "10.78.0.1/24 label eth0:b")),),
        [("eth0", "10.77.0.1")],
        like_nccl=False,
    ),
    Case(
        "down",
        (ETH0, Link("eth1", ("10.77.1.1/24",), up=False)),
        [("eth0", "10.77.0.1")],
        {"eth1": "down; `ip link set eth1 up`"},
    ),
    Case(
        "no carrier",
        (ETH0, Link("eth1", ("10.77.1.1/24",), carrier=False)),
        [("eth0", "10.77.0.1")],
        {"eth1": "no carrier"},
    ),
    Case("no address", (ETH0, Link("eth1")), [("eth0", "10.77.0.1")], {"eth1": "no IP address"}),
    Case(
        "InfiniBand first", (ETH0, Link("ib0", ("10.77.2.1/24",))), [("ib0", "10.77.2.1")], {"eth0": "NCCL prefers ib*"}
    ),
    Case(
        "prefix",
        (ETH0, ETH1),
        [("eth0", "10.77.0.1"), ("eth1", "10.77.1.1")],
        {"lo": "not selected by NCCL_SOCKET_IFNAME=eth"},
        {"NCCL_SOCKET_IFNAME": "eth"},
    ),
    Case(
        "exact",
        (ETH0, Link("eth01", ("10.77.3.1/24",))),
        [("eth0", "10.77.0.1")],
        {"eth01": "not selected by NCCL_SOCKET_IFNAME==eth0"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    Case(
        "exclusion",
        (ETH0, ETH1),
        [LOOPBACK, ("eth1", "10.77.1.1")],
        {"eth0": "excluded by NCCL_SOCKET_IFNAME=^eth0"},
        {"NCCL_SOCKET_IFNAME": "^eth0"},
    ),
    Case("loopback on request", (ETH0,), [LOOPBACK], env={"NCCL_SOCKET_IFNAME": "lo"}),
    Case(
        "by a prefix, whatever its name",
        (ETH0, Link("ens5", ("192.168.7.1/24", "fd78::1/64"))),
        [("ens5", "192.168.7.1")],
        {"eth0": "no address in BAGUA_NET_ADDRESS_PREFIX=192.168.0.0/16", "lo": "no address in"},
        {"BAGUA_NET_ADDRESS_PREFIX": "192.168.0.0/16"},
        like_nccl=False,
    ),
    Case(
        "the address that is in a prefix, not the best one",
        (Link("eth0", ("10.77.0.1/24", "10.78.0.1/24", "fd77::1/64")), BOTH_OTHER),
        [("eth0", "10.78.0.1"), ("eth1", "fd78::1")],
        env={"BAGUA_NET_ADDRESS_PREFIX": "fd78::/16,10.78.0.1"},
        like_nccl=False,
    ),
    Case(
        "a prefix among the names",
        (ETH0, ETH1, Link("ens5", ("10.78.0.1/24",))),
        [("eth1", "10.77.1.1")],
        {"eth0": "no address in", "ens5": "not selected by NCCL_SOCKET_IFNAME=eth"},
        {"NCCL_SOCKET_IFNAME": "eth", "BAGUA_NET_ADDRESS_PREFIX": "10.77.1.0/24,10.78.0.0/16"},
        like_nccl=False,
    ),
    Case(
        "a prefix that a container network shares",
        (ETH0, Link("docker0", ("10.78.0.1/24",))),
        [("eth0", "10.77.0.1")],
        {"docker0": "leads to no other host"},
        {"BAGUA_NET_ADDRESS_PREFIX": "10.0.0.0/8"},
        like_nccl=False,
    ),
    Case(
        "loopback by its prefix",
        (ETH0,),
        [LOOPBACK],
        env={"BAGUA_NET_ADDRESS_PREFIX": "127.0.0.0/8"},
        like_nccl=False,
    ),
    Case(
        "a prefix and a family that no address has together",
        (BOTH,),
        [],
        {"eth0": "no address in BAGUA_NET_ADDRESS_PREFIX=10.0.0.0/8"},
        {"NCCL_SOCKET_FAMILY": "AF_INET6", "BAGUA_NET_ADDRESS_PREFIX": "10.0.0.0/8"},
        like_nccl=False,
    ),
    Case(
        "a prefix in place of a name",
        (Link("eth0", ("10.77.0.1/24", "10.78.0.1/24")),),
        [],
        {"eth0": "takes names: =eth0 for 10.78.0.0/16, or BAGUA_NET_ADDRESS_PREFIX=10.78.0.0/16 in its place"},
        {"NCCL_SOCKET_IFNAME": "10.78.0.0/16"},
    ),
    Case(
        "a name that selects nothing",
        (ETH0,),
        [],
        {"eth0": "not selected by NCCL_SOCKET_IFNAME=ens", "lo": "ens"},
        {"NCCL_SOCKET_IFNAME": "ens"},
    ),
    Case(
        "a name that selects something unusable",
        (Link("eth0", up=False),),
        [],
        {"eth0": "down"},
        {"NCCL_SOCKET_IFNAME": "eth0"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_choice(namespace: Namespace, case: Case) -> None:
    for link in case.links:
        namespace.link(link.name, *link.addresses, up=link.up, carrier=link.carrier)
    rows = namespace.scan(**case.env)
    assert [(row["name"], row["address"]) for row in rows if row["reason"] is None] == case.devices
    reasons = {row["name"]: row["reason"] for row in rows if row["reason"] is not None}
    for name, part in case.rejected.items():
        assert part in reasons[name]
    names = [row["name"] for row in rows]
    assert sorted(names) == sorted({"lo"} | {link.name for link in case.links}), "each interface once"


@pytest.fixture
def nccl() -> str:
    return str(nccl_wheels.library("2.30.7"))


@pytest.mark.gate
@pytest.mark.parametrize("case", [case for case in CASES if case.like_nccl], ids=lambda case: case.what)
def test_nccl_chooses_the_same(namespace: Namespace, nccl: str, case: Case) -> None:
    for link in case.links:
        namespace.link(link.name, *link.addresses, up=link.up, carrier=link.carrier)
    assert namespace.python(_NCCL_SCAN, nccl, **case.env) == [name for name, _ in case.devices]


def test_more_interfaces_than_devices(namespace: Namespace) -> None:
    for number in range(18):
        namespace.link(f"eth{number}", f"10.77.{number}.1/24")
    rows = namespace.scan()
    assert [row["name"] for row in rows if row["reason"] is None] == [f"eth{number}" for number in range(16)]
    reasons = {row["name"]: row["reason"] for row in rows}
    assert reasons["eth16"] == reasons["eth17"] == "more than 16 interfaces; NCCL_SOCKET_IFNAME chooses among them"


def test_container_bridge(namespace: Namespace) -> None:
    """docker0 as a container engine makes it: a bridge with a container's link as its port."""
    namespace.link("eth0", "10.77.0.1/24")
    namespace.ip("link", "add", "docker0", "type", "bridge")
    namespace.link("veth9", "fe80::9/64")
    namespace.ip("link", "set", "veth9", "master", "docker0")
    namespace.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
    namespace.ip("link", "set", "docker0", "up")
    namespace.await_carrier("docker0")
    rows = {row["name"]: row for row in namespace.scan()}
    assert [name for name, row in rows.items() if row["reason"] is None] == ["eth0"]
    assert "a network of containers" in rows["docker0"]["reason"]
    assert "a port of a bridge" in rows["veth9"]["reason"]
    chosen = [row["name"] for row in namespace.scan(NCCL_SOCKET_IFNAME="docker") if row["reason"] is None]
    assert chosen == ["docker0"]


def test_bridge_over_the_network_card(namespace: Namespace) -> None:
    namespace.link("eth0", "fe80::1/64")
    namespace.ip("link", "add", "br0", "type", "bridge")
    namespace.ip("link", "set", "eth0", "master", "br0")
    namespace.settle("br0", "10.77.0.1/24")
    rows = {row["name"]: row for row in namespace.scan()}
    assert [name for name, row in rows.items() if row["reason"] is None] == ["br0"]
    assert "a port of a bridge" in rows["eth0"]["reason"]


#: Makes the tunnel x0, except where a program has to hold it open.
TUNNELS = {
    "vxlan": ("vxlan", "id", "5", "dstport", "4789", "local", "10.77.0.1", "remote", "10.77.0.2"),
    "wireguard": ("wireguard",),
    "gre": ("gre", "local", "10.77.0.1", "remote", "10.77.0.2"),
    "tun": (),
    "tap": (),
}
#: Makes the interface and holds it open until its input ends: it has a carrier for so long.
_HOLD = """
import fcntl, struct, sys
device = open("/dev/net/tun", "rb+", buffering=0)
fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), int(sys.argv[2]) | 0x1000))
print("made", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def tunnel(namespace: Namespace, kind: str, name: str, *addresses: str) -> Iterator[None]:
    """A tunnel with these addresses beside eth0, on a kernel that has such tunnels."""
    if TUNNELS[kind]:
        namespace.ip("link", "add", "name", name, "type", *TUNNELS[kind])
        namespace.settle(name, *addresses)
        yield
        return
    if not Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no /dev/net/tun")
    command = [*namespace.near.prefix, sys.executable, "-c", _HOLD, name, "1" if kind == "tun" else "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "made\n"
        namespace.settle(name, *addresses)
        yield
        holder.stdin.close()


def chosen(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows if row["reason"] is None]


@pytest.mark.parametrize("kind", TUNNELS)
def test_a_tunnel_beside_a_card_is_not_used(namespace: Namespace, kind: str) -> None:
    """Whatever its name: the kernel says what it is."""
    namespace.link("eth0", "10.77.0.1/24")
    with tunnel(namespace, kind, "aaa0", "10.99.0.1/24"):
        rows = namespace.scan()
        assert chosen(rows) == ["eth0"]
        reasons = {row["name"]: row["reason"] for row in rows}
        assert reasons["aaa0"] == "a VPN or overlay, while others exist; NCCL_SOCKET_IFNAME==aaa0 selects it"
        assert chosen(namespace.scan(NCCL_SOCKET_IFNAME="aaa")) == ["aaa0"]


def test_a_tunnel_alone_is_used(namespace: Namespace) -> None:
    """Beside loopback and management ports: containers without privileges often have nothing else."""
    namespace.link("idrac", "169.254.0.2/16")
    with tunnel(namespace, "tap", "tap0", "10.99.0.1/24"):
        assert chosen(namespace.scan()) == ["tap0"]


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"MASTER_ADDR": "10.99.0.7"}, ["eth0", "tailscale0"]),
        ({"MASTER_ADDR": "10.99.0.1"}, ["eth0", "tailscale0"]),
        ({"MASTER_ADDR": "10.200.3.4"}, ["eth0", "tailscale0"]),
        ({"MASTER_ADDR": "fd99::7"}, ["eth0", "tailscale0"]),
        ({"NCCL_COMM_ID": "10.99.0.7:29500", "MASTER_ADDR": "10.77.0.9"}, ["eth0", "tailscale0"]),
        ({"NCCL_COMM_ID": "[fd99::7]:29500"}, ["eth0", "tailscale0"]),
        ({"NCCL_COMM_ID": "10.77.0.9:29500", "MASTER_ADDR": "10.99.0.7"}, ["eth0"]),
        ({"MASTER_ADDR": "10.77.0.9"}, ["eth0"]),
        ({"MASTER_ADDR": "192.0.2.1"}, ["eth0"]),
        ({"MASTER_ADDR": "node0"}, ["eth0"]),
        ({"MASTER_ADDR": "10.99.0.7", "NCCL_SOCKET_IFNAME": "eth"}, ["eth0"]),
    ],
    ids=str,
)
def test_a_tunnel_to_the_rendezvous_is_used(namespace: Namespace, variables: dict[str, str], names: list[str]) -> None:
    """From the master itself, from a host in its subnet, and by a route through the tunnel."""
    namespace.link("eth0", "10.77.0.1/24")
    with tunnel(namespace, "tun", "tailscale0", "10.99.0.1/24", "fd99::1/64"):
        namespace.ip("route", "add", "10.200.0.0/16", "dev", "tailscale0")
        cleared = {"MASTER_ADDR": "", "NCCL_COMM_ID": ""}
        assert chosen(namespace.scan(**cleared | variables)) == names


STACKED = {
    "macvlan": ("link", "eth0", "type", "macvlan"),
    "vlan": ("link", "eth0", "type", "vlan", "id", "5"),
    "dummy": ("type", "dummy"),
    "bond": ("type", "bond", "mode", "active-backup"),
}


@pytest.mark.parametrize("kind", STACKED)
def test_other_kinds(namespace: Namespace, kind: str) -> None:
    namespace.link("eth0")
    definition = list(STACKED[kind])
    position = 2 if definition[0] == "link" else 0
    namespace.ip("link", "add", *definition[:position], "name", "x0", *definition[position:])
    if kind == "bond":
        namespace.ip("link", "set", "eth0", "down")
        namespace.ip("link", "set", "eth0", "master", "x0")
    namespace.settle("x0", "10.77.5.1/24")
    (row,) = [row for row in namespace.scan() if row["reason"] is None]
    assert (row["name"], row["address"], row["pci_path"], row["numa_node"]) == ("x0", "10.77.5.1", None, None)
    assert row["speed_mbps"] == 10000


def test_an_address_of_the_host_on_loopback(namespace: Namespace) -> None:
    """As where hosts speak BGP with their switches: the cards have link-local addresses only."""
    namespace.link("lan0", "fe80::77/64")
    namespace.ip("address", "add", "10.99.0.1/32", "dev", "lo")
    for setting in ({}, {"NCCL_SOCKET_IFNAME": "lo"}):
        rows = namespace.scan(**setting)
        assert [(row["name"], row["address"]) for row in rows if row["reason"] is None] == [("lo", "10.99.0.1")]
    namespace.link("eth0", "10.77.0.1/24")
    assert chosen(namespace.scan()) == ["eth0"]


def test_facts_of_a_link(namespace: Namespace) -> None:
    """The speed that veth reports means nothing, so it counts as unknown."""
    namespace.link("eth0", "10.77.0.1/24")
    namespace.ip("link", "set", "eth0", "mtu", "8900")
    (row,) = [row for row in namespace.scan() if row["reason"] is None]
    assert (row["speed_mbps"], row["speed_known"], row["mtu"]) == (10000, False, 8900)
    assert (row["pci_path"], row["numa_node"]) == (None, None)


def test_unknown_family_is_an_error(namespace: Namespace) -> None:
    with pytest.raises(AssertionError, match=r"NCCL_SOCKET_FAMILY=IPv6 .*: not AF_INET or AF_INET6"):
        namespace.scan(NCCL_SOCKET_FAMILY="IPv6")
