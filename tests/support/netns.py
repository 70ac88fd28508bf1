# SPDX-License-Identifier: MIT
"""Two hosts on one machine: network namespaces joined by veth pairs, which are removed in any case.

    with netns.two_hosts(links=2) as (a, b):
        a.ip("address", "add", "10.0.0.1/24", "dev", "link0")
        subprocess.run([*a.prefix, "ping", ...])

Interface linkN of either host leads to interface linkN of the other.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import string
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_SECONDS = 20
_NUMBER = itertools.count()


class CommandFailed(RuntimeError):
    """A command that sets up the network has failed; the text has the command and its error."""


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str

    @property
    def prefix(self) -> list[str]:
        """The words that run a command there when put in front of it."""
        return ["ip", "netns", "exec", self.name]

    @property
    def pci_prefix(self) -> list[str]:
        """The same, and the command sees the links as PCI cards. Skips the test where the machine has too few slots."""
        if len(list(Path("/sys/devices").glob("pci*/????:??:??.?"))) < 2:
            pytest.skip("this machine has no PCI slots that links can take")
        return [*self.prefix, str(Path(__file__).with_name("on_pci.sh"))]

    def wrap(self, *, on_pci: bool = False, **settings: str) -> str:
        """The prefix with these variables, as shell text."""
        prefix = self.pci_prefix if on_pci else self.prefix
        return " ".join([*prefix, "env", *(f"{name}={value}" for name, value in settings.items())])

    def ip(self, *arguments: str) -> str:
        return _run("ip", "-netns", self.name, *arguments)

    def tc(self, *arguments: str) -> None:
        _run("tc", "-netns", self.name, *arguments)

    def nft(self, rules: str) -> None:
        _run(*self.prefix, "nft", "-f", "-", given=rules)

    def sysctl(self, setting: str) -> None:
        """NAME=VALUE, for this namespace."""
        _run(*self.prefix, "sysctl", "--quiet", "--write", setting)

    def index(self, interface: str) -> int:
        return int(json.loads(self.ip("-json", "link", "show", interface))[0]["ifindex"])

    def is_up(self, interface: str) -> bool:
        """It has a carrier."""
        return bool(json.loads(self.ip("-json", "link", "show", interface))[0]["operstate"] == "UP")

    def congestion_controls(self) -> set[str]:
        """Of the connected TCP sockets."""
        listed = _run(*self.prefix, "ss", "--tcp", "--info", "--oneline", "--no-header", "state", "established")
        return set(re.findall(r"\b([a-z]+) wscale", listed))

    def sent_bytes(self, interface: str) -> int:
        """Bytes that have left through the interface so far."""
        return int(json.loads(self.ip("-json", "-statistics", "link", "show", interface))[0]["stats64"]["tx"]["bytes"])

    def cap_flows(self, interface: str, mbits: list[int], seed: int) -> None:
        """One class with its own rate (Mbit/s) per part of the TCP flows, chosen by a seeded hash of addresses and
        ports. Small packets are exempt: acknowledgements are mostly sent alone."""
        self.tc("qdisc", "add", "dev", interface, "root", "handle", "1:", "htb", "default", "99")
        self.tc("class", "add", "dev", interface, "parent", "1:", "classid", "1:99", "htb", "rate", "10gbit")
        for number, mbit in enumerate(mbits):
            parent = ["dev", interface, "parent", "1:", "classid", f"1:{number + 10}"]
            self.tc("class", "add", *parent, "htb", "rate", f"{mbit}mbit")
        classes = ", ".join(f"{number} : 1:{number + 10}" for number in range(len(mbits)))
        flow = "ip saddr . ip daddr . tcp sport . tcp dport"
        self.nft(
            "table inet caps { chain out { type route hook output priority 0;\n"
            f'oifname "{interface}" meta length > 200 meta priority set '
            f"jhash {flow} mod {len(mbits)} seed {seed:#x} map {{ {classes} }}\n"
            "}\n}\n"
        )

    def cap_known_flows(self, interface: str, mbit: int) -> None:
        """One class with that rate (Mbit/s) for the existing TCP connections, another without a limit for later ones.
        Small packets are exempt. :meth:`capped_bytes` has the bytes of each, the slow one first."""
        listed = _run(*self.prefix, "ss", "--tcp", "--numeric", "--no-header", "state", "established")
        ports = {row.split()[2].rpartition(":")[2] for row in listed.splitlines()}
        self.tc("qdisc", "add", "dev", interface, "root", "handle", "1:", "htb", "default", "99")
        for number, rate in ((10, f"{mbit}mbit"), (11, "10gbit"), (99, "10gbit")):
            parent = ["dev", interface, "parent", "1:", "classid", f"1:{number}"]
            self.tc("class", "add", *parent, "htb", "rate", rate)
        known = f'oifname "{interface}" meta length > 200 tcp sport {{ {", ".join(sorted(ports))} }}'
        later = f'oifname "{interface}" meta length > 200 tcp sport != {{ {", ".join(sorted(ports))} }}'
        self.nft(
            "table inet caps { chain out { type route hook output priority 0;\n"
            f"{known} meta priority set 1:10\n{later} meta priority set 1:11\n"
            "}\n}\n"
        )

    def cap_link(self, interface: str, mbit: int) -> None:
        """One class of that rate (Mbit/s) for everything that leaves through the interface."""
        self.tc("qdisc", "add", "dev", interface, "root", "handle", "1:", "htb", "default", "10")
        self.tc("class", "add", "dev", interface, "parent", "1:", "classid", "1:10", "htb", "rate", f"{mbit}mbit")

    def share_link(self, interface: str, mbit: int, *, fair: bool, forwarded: bool = False) -> None:
        """All that leaves through the interface shares that rate (Mbit/s): in one queue of half a megabyte, or, if
        fair, in one of its own for each TCP flow (a hash of 256). Small packets are exempt from fair queues.

        forwarded: other hosts' packets that pass through this one, not its own.
        """
        queues = 256 if fair else 1
        self.tc("qdisc", "add", "dev", interface, "root", "handle", "1:", "htb", "default", "100")
        top = ["dev", interface, "parent", "1:", "classid", "1:1", "htb", "rate", f"{mbit}mbit", "quantum", "60000"]
        self.tc("class", "add", *top)
        for number in range(queues):
            handle = f"1:{number + 0x100:x}"
            rate = ["rate", f"{max(1, mbit // queues)}mbit", "ceil", f"{mbit}mbit", "quantum", "3000"]
            self.tc("class", "add", "dev", interface, "parent", "1:1", "classid", handle, "htb", *rate)
            self.tc("qdisc", "add", "dev", interface, "parent", handle, "bfifo", "limit", "500000")
        if not fair:
            return
        targets = ", ".join(f"{number} : 1:{number + 0x100:x}" for number in range(queues))
        flow = "ip saddr . ip daddr . tcp sport . tcp dport"
        hook = "filter hook forward" if forwarded else "route hook output"
        self.nft(
            f"table inet share {{ chain out {{ type {hook} priority 0;\n"
            f'oifname "{interface}" meta length > 200 meta priority set '
            f"jhash {flow} mod {queues} map {{ {targets} }}\n"
            "}\n}\n"
        )

    def processes(self) -> list[int]:
        """The ids of the processes that run there."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.name).split()]

    def streams(self) -> int:
        """The number of TCP sockets that are connected, with both directions open, and have carried data. A handshake
        or a question is shorter."""
        listed = _run(
            *self.prefix, "ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline", "state", "established"
        )
        counts = [re.findall(r"bytes_(?:sent|received):(\d+)", row) for row in listed.splitlines()]
        return sum(any(int(count) > 1000 for count in row) for row in counts)

    def listeners(self) -> int:
        """The number of TCP sockets that listen."""
        return len(_run(*self.prefix, "ss", "--tcp", "--listening", "--no-header").splitlines())

    def socket_details(self) -> str:
        """What ss reports of the connected TCP sockets, with their timers."""
        return _run(*self.prefix, "ss", "--tcp", "--options", "--no-header", "state", "established")

    def capped_bytes(self, interface: str) -> list[int]:
        """The bytes that each class of :meth:`cap_flows` has carried, in order."""
        shown = _run("tc", "-netns", self.name, "-statistics", "class", "show", "dev", interface)
        rows = re.findall(r"^class htb (\S+) .*\n Sent (\d+) bytes", shown, re.MULTILINE)
        carried = {int(handle.partition(":")[2], 16): int(sent) for handle, sent in rows if handle != "1:99"}
        return [carried[minor] for minor in sorted(carried)]

    def drop_received(self, per_mille: int) -> None:
        """Drops incoming TCP packets at random."""
        self.nft(
            "table inet loss { chain in { type filter hook input priority 0;\n"
            f"meta l4proto tcp numgen random mod 1000 < {per_mille} counter drop\n"
            "}\n}\n"
        )

    def take_one_connection(self) -> None:
        """Drops the first packet of every incoming connection but one: a SYN has 60 bytes."""
        self.nft(
            "table inet closed { chain in { type filter hook input priority 0;\n"
            "tcp flags & (syn | ack) == syn quota over 80 bytes drop\n"
            "}\n}\n"
        )

    def dropped_packets(self) -> int:
        return self._counters("loss")[0]

    def count_received(self, *matches: str) -> None:
        """Counts the incoming TCP packets that match each of these nft expressions."""
        rules = "\n".join(f"meta l4proto tcp {match} counter" for match in matches)
        self.nft(f"table inet counts {{ chain in {{ type filter hook input priority 0;\n{rules}\n}}\n}}\n")

    def received_packets(self) -> list[int]:
        """The counts of :meth:`count_received`."""
        return self._counters("counts")

    def packets(self, table: str) -> int:
        """That the counters of the table have counted."""
        return sum(self._counters(table))

    def _counters(self, table: str) -> list[int]:
        listed = json.loads(_run(*self.prefix, "nft", "--json", "list", "table", "inet", table))["nftables"]
        parts = [part for row in listed if "rule" in row for part in row["rule"]["expr"]]
        return [int(part["counter"]["packets"]) for part in parts if "counter" in part]


@functools.cache
def _obstacle(tools: tuple[str, ...], *probes: tuple[str, ...]) -> str | None:
    """Why namespaces are not possible here; None: they are."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for tool in tools:
        if not shutil.which(tool):
            return f"{tool} is not installed"
    try:
        for probe in probes:
            _run(*probe)
    except (CommandFailed, subprocess.TimeoutExpired) as error:
        return f"no namespaces here: {error}"
    return None


def has_ipv6(interface: str = "") -> bool:
    """Does the kernel speak it, and has the interface an address, if one is named?"""
    addresses = Path("/proc/net/if_inet6")
    return addresses.exists() and (not interface or f" {interface}\n" in addresses.read_text())


def require() -> None:
    """Skips the test where hosts are not possible. Root in a container may have no right to make namespaces."""
    name = f"bnet-{os.getpid()}-probe"
    if reason := _obstacle(
        ("ip", "ss", "tc", "nft", "sysctl"), ("ip", "netns", "add", name), ("ip", "netns", "del", name)
    ):
        pytest.skip(reason)


def require_unshare() -> None:
    """Skips the test where unshare(1) cannot give a command namespaces of its own."""
    if reason := _obstacle(("unshare",), ("unshare", "--net", "--mount", "true")):
        pytest.skip(reason)


#: Of nft(8), tc(8), ip(8) and sysctl(8).
_KERNELS_ANSWERS = ("Could not process rule", "qdisc kind is unknown", "not supported", "No such file or directory")


def needs(action: str, error: CommandFailed) -> None:
    """Skips the test where the kernel lacks a feature; re-raises any other error."""
    if any(answer in str(error) for answer in _KERNELS_ANSWERS):
        pytest.skip(f"this kernel cannot {action}: {error}")
    raise error


def join(a: Host, b: Host, name_of_a: str, name_of_b: str) -> None:
    """A veth pair between the two, up, without addresses."""
    _run("ip", "link", "add", name_of_a, "netns", a.name, "type", "veth", "peer", "name", name_of_b, "netns", b.name)
    for host, name in ((a, name_of_a), (b, name_of_b)):
        if has_ipv6():
            host.ip("link", "set", name, "addrgenmode", "none")
        host.ip("link", "set", name, "up")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many namespaces, with nothing but loopback. Skips the test where namespaces are not possible."""
    require()
    stem = f"bnet-{os.getpid()}-{next(_NUMBER)}"
    made = [Host(f"{stem}-{letter}") for letter in string.ascii_lowercase[:count]]
    try:
        for host in made:
            _run("ip", "netns", "add", host.name)
            host.ip("link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, timeout=_SECONDS)


@contextlib.contextmanager
def two_hosts(links: int = 1) -> Iterator[tuple[Host, Host]]:
    """Two namespaces and the links between them, up but without addresses."""
    with hosts(2) as (a, b):
        for number in range(links):
            join(a, b, f"link{number}", f"link{number}")
        yield a, b
