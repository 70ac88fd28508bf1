# SPDX-License-Identifier: MIT
"""The networks between two hosts, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.networks import namespaces, wan
from benchmarks.report import machine

LONG_LINE = "20 ms, 0.1 % lost"
#: The rates of flow classes in Mbit/s, by network; none: no caps. A hash of a connection's ports decides among several,
#: as among the paths of a network.
CLASSES: dict[str, tuple[int, ...]] = {
    "100 Mbit/s": (100,),
    "1 Gbit/s": (1000,),
    "10 Gbit/s": (10000,),
    "no caps": (),
    "unequal classes": (100, 200, 400, 300),
}

Network = Callable[[], AbstractContextManager[namespaces.Hosts]]


def _shaped(*classes_mbits: int) -> Network:
    @contextmanager
    def network() -> Iterator[namespaces.Hosts]:
        with namespaces.veth(machine.congestion_control()) as hosts:
            if classes_mbits:
                namespaces.shape(hosts, classes_mbits)
                namespaces.hash_flows(hosts, len(classes_mbits), 0)
            yield hosts

    return network


def _long_line(relay: Path) -> Network:
    @contextmanager
    def network() -> Iterator[namespaces.Hosts]:
        line = wan.Line(round_trip_ms=20, loss=0.001)
        with wan.wan(relay, line, machine.congestion_control()) as made:
            yield made.hosts

    return network


def networks(relay: Path) -> dict[str, Network]:
    """By name. ``relay``: the measuring track's program of the long line."""
    return {name: _shaped(*classes) for name, classes in CLASSES.items()} | {LONG_LINE: _long_line(relay)}


def least_seconds(network: str, sent: float) -> float | None:
    """That the flow classes need for so many bytes of one host. None: the network has no caps."""
    classes = CLASSES.get(network)
    return sent / 1e9 / namespaces.capacity(classes) if classes else None
