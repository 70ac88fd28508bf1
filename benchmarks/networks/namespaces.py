# SPDX-License-Identifier: MIT
"""The networks of the track: namespaces of this machine, with or without flow classes.

Needs root, iproute2 and nftables. Everything lives in private namespaces and disappears with them.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid
from pathlib import Path

MTU = 1500
#: TCP payload of a full frame over the frame as htb counts it: Ethernet 14, IPv4 20, TCP 20, timestamps 12.
PAYLOAD_SHARE = (MTU - 52) / (MTU + 14)

_PREFIX = "bnet-track"
_INTERFACE = "track"


class NetworkSetupError(Exception):
    """A command that builds the network failed; the text has the command and its error."""


@dataclass(frozen=True)
class Host:
    """Where a rank runs."""

    namespace: str
    interface: str
    """Several are separated by commas."""
    address: str
    """Of the first."""


Hosts = tuple[Host, Host]


def run(command: Sequence[str], text: str | None = None) -> str:
    """The output of a command that reads ``text``.

    Raises:
        NetworkSetupError: it failed.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise NetworkSetupError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def remove_stale() -> None:
    """Removes namespaces that a killed track left behind."""
    for name in re.findall(rf"^{_PREFIX}-(\d+)-(\w+)", run(["ip", "netns", "list"]), re.MULTILINE):
        if not Path(f"/proc/{name[0]}").exists():
            run(["ip", "netns", "delete", f"{_PREFIX}-{name[0]}-{name[1]}"])


@contextmanager
def namespace(suffix: str) -> Iterator[str]:
    """A network namespace of this process with its loopback interface up; yields its name. ``suffix``: letters."""
    name = f"{_PREFIX}-{getpid()}-{suffix}"
    run(["ip", "netns", "add", name])
    try:
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        yield name
    finally:
        run(["ip", "netns", "delete", name])


def await_running(host: Host, timeout_s: float = 10.0) -> None:
    """Waits until the kernel reports a new link as running, which it does up to a second late; NCCL uses no other.

    Raises:
        NetworkSetupError: it is not running after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while " state UP " not in run(["ip", "-n", host.namespace, "link", "show", host.interface]):
        if time.monotonic() > deadline:
            raise NetworkSetupError(f"{host.interface} in {host.namespace} is not up after {timeout_s:.0f} s")
        time.sleep(0.02)


@contextmanager
def loopback(congestion_control: str) -> Iterator[Hosts]:
    """Both ranks in one namespace, over its loopback interface (MTU 65536)."""
    with namespace("lo") as name:
        run(
            [
                "ip",
                "-n",
                name,
                *f"route replace table local local 127.0.0.1 dev lo congctl {congestion_control}".split(),
            ]
        )
        host = Host(name, "lo", "127.0.0.1")
        yield host, host


def crowd(host: Host, interfaces: int) -> None:
    """Adds virtual Ethernet cables with both ends in the host's namespace: so many interfaces, each with an address
    (IPv6, link-local)."""
    lines = []
    for number in range(interfaces // 2):
        a, b = f"crowd{number}a", f"crowd{number}b"
        lines += [f"link add {a} type veth peer name {b}", f"link set {a} up", f"link set {b} up"]
    run(["ip", "-n", host.namespace, "-batch", "-"], "\n".join(lines) + "\n")
    deadline = time.monotonic() + 30
    ready = ["ip", "-n", host.namespace, "-o", "-6", "address", "show", "-tentative"]
    while (count := run(ready).count("crowd")) < len(lines) // 3 * 2:
        if time.monotonic() > deadline:
            raise NetworkSetupError(f"{host.namespace} has {count} of {interfaces} addresses after 30 s")
        time.sleep(0.1)


def _lay(ends: tuple[str, str], number: int, congestion_control: str) -> Hosts:
    """A virtual Ethernet cable between two namespaces, MTU 1500, with the kernel's default offloads."""
    a, b = ends
    interface, subnet = f"{_INTERFACE}{number}", f"10.0.{2 * number}"
    cable = f"link add {interface} mtu {MTU} type veth peer name {interface} mtu {MTU} netns {b}"
    run(["ip", "-n", a, *cable.split()])
    hosts = (Host(a, interface, f"{subnet}.1"), Host(b, interface, f"{subnet}.2"))
    for host in hosts:
        run(["ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface])
        run(["ip", "-n", host.namespace, "link", "set", host.interface, "up"])
        # By route: in a namespace the sysctl takes only algorithms that unprivileged users may choose.
        route = f"route replace {subnet}.0/24 dev {host.interface} src {host.address} congctl {congestion_control}"
        run(["ip", "-n", host.namespace, *route.split()])
    return hosts


@contextmanager
def veth(congestion_control: str) -> Iterator[Hosts]:
    """Two namespaces and one cable."""
    with namespace("a") as a, namespace("b") as b:
        hosts = _lay((a, b), 0, congestion_control)
        for host in hosts:
            await_running(host)
        yield hosts


@contextmanager
def cables(rates_mbits: Sequence[int], congestion_control: str) -> Iterator[Hosts]:
    """Two namespaces and for each rate a cable with its own subnet. Each host is yielded with all its interfaces.

    A cable's rate is its only flow class (:func:`shape`); segments without payload do not wait for it.
    """
    with namespace("a") as a, namespace("b") as b:
        laid = [_lay((a, b), number, congestion_control) for number in range(len(rates_mbits))]
        for hosts, rate in zip(laid, rates_mbits, strict=True):
            shape(hosts, (rate,))
            for host in hosts:
                await_running(host)
        hash_flows(laid[0], 1, 0)
        yield (_joined([hosts[0] for hosts in laid]), _joined([hosts[1] for hosts in laid]))


def _joined(ends: Sequence[Host]) -> Host:
    return Host(ends[0].namespace, ",".join(end.interface for end in ends), ends[0].address)


# ---- flow classes ----


def capacity(classes_mbits: Sequence[int]) -> float:
    """TCP payload that the classes carry together in one direction, GB/s."""
    return sum(classes_mbits) / 8000 * PAYLOAD_SHARE


def shape(hosts: Hosts, classes_mbits: Sequence[int]) -> None:
    """Gives the outgoing side of each end one htb class per rate. Class 1:ff carries everything outside the classes."""
    for host in hosts:
        device = f"dev {host.interface}"
        lines = [f"qdisc replace {device} root handle 1: htb default ff"]
        lines.append(f"class add {device} parent 1: classid 1:ff htb rate 40gbit")
        for number, rate in enumerate(classes_mbits):
            lines.append(f"class add {device} parent 1: classid 1:{number + 1:x} htb rate {rate}mbit quantum 60000")
        run(["tc", "-n", host.namespace, "-batch", "-"], "\n".join(lines) + "\n")


def reshape(hosts: Hosts, classes_mbits: Sequence[int]) -> None:
    """Gives the classes of :func:`shape` other rates."""
    for host in hosts:
        of_each = enumerate(classes_mbits, start=1)
        change = f"class change dev {host.interface} parent 1: classid"
        lines = [f"{change} 1:{number:x} htb rate {rate}mbit quantum 60000" for number, rate in of_each]
        run(["tc", "-n", host.namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _rules(classes: int, seed: int) -> str:
    """An nftables script: a TCP flow belongs to the class that a seeded hash of its addresses and ports names.

    Segments without payload (IP length = 20 + the TCP header's) are left to class 1:ff, so that an acknowledgement
    never waits behind data. By length alone, a short segment with payload would overtake the rest of its flow.
    """
    empty = "\n".join(f"    ip length {20 + 4 * words} tcp doff {words} accept" for words in range(5, 16))
    targets = ", ".join(f"{number} : 1:{number + 1:x}" for number in range(classes))
    flow = "ip saddr . tcp sport . ip daddr . tcp dport"
    return f"""
table ip track
delete table ip track
table ip track {{
  chain data {{
    meta priority set jhash {flow} mod {classes} seed {seed:#x} map {{ {targets} }}
  }}
  chain short {{
{empty}
    goto data
  }}
  chain output {{
    type filter hook output priority mangle; policy accept;
    meta l4proto != tcp accept
    ip length <= 80 goto short
    goto data
  }}
}}
"""


def hash_flows(hosts: Hosts, classes: int, seed: int) -> None:
    """Sends every TCP flow through one of the classes of :func:`shape`, by a hash with this seed (32 bits)."""
    for host in hosts:
        run(["ip", "netns", "exec", host.namespace, "nft", "-f", "-"], _rules(classes, seed))
