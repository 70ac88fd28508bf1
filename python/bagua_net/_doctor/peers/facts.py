# SPDX-License-Identifier: MIT
"""What each host says of itself, and how two hosts answer each other."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from .host import FORMAT
from .link import PeerLost
from .probe import Answer, Way


@dataclass(frozen=True)
class Nic:
    """An interface that NCCL is offered."""

    name: str
    address: str
    mtu: int
    speed_mbps: int
    speed_known: bool
    #: its kind, where packets go inside of others; "": none
    tunnel: str = ""

    @property
    def family(self) -> int:
        return ipaddress.ip_address(self.address.partition("%")[0]).version

    @property
    def headers(self) -> int:
        """Bytes of IP and TCP in each packet."""
        return 40 if self.family == 4 else 60

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@dataclass(frozen=True)
class Facts:
    """Of one host."""

    name: str
    #: the network that it sees: the same for processes of one host, or of one container
    place: str
    version: str
    on: bool
    problem: str
    #: of its processes: the secret, and whether they encrypt
    identity: str
    nccl: str
    nics: list[Nic]
    #: interfaces that NCCL is not offered, by their addresses
    others: dict[str, str]
    #: … and why, by their names
    left_out: dict[str, str]
    #: the first and the last port of BAGUA_NET_PORT_RANGE; empty: any
    ports: list[int]
    #: those that the kernel gives to who asks for none
    kernel_ports: list[int]
    #: of the machine, by its firmware
    vendor: str
    processors: int
    findings: list[dict[str, str]] = field(default_factory=list)

    @property
    def addresses(self) -> dict[str, str]:
        """All of its interfaces' names, by address."""
        return {**self.others, **{nic.address: nic.name for nic in self.nics}}


def of(name: str, reply: dict[str, Any]) -> Facts:
    """Of what a host has answered.

    Raises:
        PeerLost: it has another version of the doctor.
    """
    if reply["format"] != FORMAT:
        raise PeerLost(f"{name} has another version of bagua_net; install the same one on all hosts")
    nics = [Nic(**{each: row[each] for each in Nic.__dataclass_fields__}) for row in reply["interfaces"]]
    same = {each: reply[each] for each in Facts.__dataclass_fields__ if each not in ("name", "nics")}
    return Facts(name=name, nics=nics, **same)


@dataclass(frozen=True)
class Listening:
    """A host's listeners: its name as they say it, and their ports by address."""

    name: str
    place: str
    ports: dict[str, int]
    any: dict[str, int]
    #: by address, why the host could not listen there
    problems: dict[str, str]


def answers(rows: list[dict[str, Any]]) -> list[Answer]:
    return [Answer(**{**each, "way": Way(*each["way"])}) for each in rows]


@dataclass(frozen=True)
class Reach:
    """What the ways from one host to another have met."""

    one: Facts
    other: Facts
    answers: list[Answer]
    #: of the other
    listening: Listening

    @property
    def title(self) -> str:
        return f"{self.one.name} → {self.other.name}"

    @property
    def good(self) -> list[Answer]:
        """Those that the other has answered itself."""
        return [each for each in self.answers if not each.problem and each.name == self.listening.name]

    @property
    def strange(self) -> list[Answer]:
        """Those that somebody else has answered at the other's address."""
        return [each for each in self.answers if not each.problem and each.name != self.listening.name]

    @property
    def common(self) -> list[str]:
        """Addresses of the other that the one has as well."""
        return [nic.address for nic in self.other.nics if nic.address in self.one.addresses]

    @property
    def best(self) -> list[Answer]:
        """A good one for each interface: to the address that answered soonest."""
        first: dict[str, Answer] = {}
        for each in sorted(self.good, key=lambda answer: answer.seconds):
            first.setdefault(each.way.device, each)
        return list(first.values())

    @property
    def translated(self) -> list[Answer]:
        """Those whose source the other sees as another address."""
        return [each for each in self.good if each.seen.partition("%")[0] != each.way.source.partition("%")[0]]

    def nic(self, answer: Answer) -> Nic:
        """Of the one, by which the answer came."""
        return next(each for each in self.one.nics if each.name == answer.way.device)

    def nic_there(self, answer: Answer) -> Nic:
        return next(each for each in self.other.nics if each.address == answer.way.address)
