# SPDX-License-Identifier: MIT
"""What each host says of itself, and how two hosts answer each other."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

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
    version: str
    on: bool
    problem: str
    nccl: str
    nics: list[Nic]
    #: the first and the last port of BAGUA_NET_PORT_RANGE; empty: any
    ports: list[int]
    #: those that the kernel gives to who asks for none
    kernel_ports: list[int]
    #: of the machine, by its firmware
    vendor: str
    processors: int
    findings: list[dict[str, str]] = field(default_factory=list)


def of(name: str, reply: dict[str, Any]) -> Facts:
    """Of what a host has answered."""
    nics = [Nic(**{each: row[each] for each in Nic.__dataclass_fields__}) for row in reply["interfaces"]]
    same = ("version", "on", "problem", "nccl", "ports", "kernel_ports", "vendor", "processors", "findings")
    return Facts(name=name, nics=nics, **{each: reply[each] for each in same})


@dataclass(frozen=True)
class Listening:
    """A host's listeners: its name as they say it, and their ports by address."""

    name: str
    ports: dict[str, int]
    any: dict[str, int]


def ways(one: Facts, other: Facts, ports: dict[str, int]) -> list[Way]:
    """From each interface of the one to each address of the other, of the same family."""
    return [
        Way(here.address, here.name, there.address, ports[there.address])
        for here in one.nics
        for there in other.nics
        if here.family == there.family and there.address in ports
    ]


def answers(reply: dict[str, Any]) -> list[Answer]:
    return [Answer(**{**each, "way": Way(*each["way"])}) for each in reply["answers"]]


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
    def best(self) -> list[Answer]:
        """A good one for each interface: to the address that answered soonest."""
        first: dict[str, Answer] = {}
        for each in sorted(self.good, key=lambda answer: answer.seconds):
            first.setdefault(each.way.device, each)
        return list(first.values())

    def nic(self, answer: Answer) -> Nic:
        """Of the one, by which the answer came."""
        return next(each for each in self.one.nics if each.name == answer.way.device)
