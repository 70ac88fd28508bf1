# SPDX-License-Identifier: MIT
"""An emulated wide-area network: two namespaces joined by a line with a delay, losses and a rate (relay.c)."""

from __future__ import annotations

import json
import secrets
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.networks.namespaces import MTU, Host, Hosts, NetworkSetupError, namespace, run

_INTERFACE = "wan0"
_ADDRESSES = ("10.0.1.1", "10.0.1.2")
#: Packets that may wait for the relay to read them. Drops beyond it are the device's and not the line's.
_DEVICE_QUEUE = 100_000
_ANSWER_S = 10.0


@dataclass(frozen=True)
class Line:
    """The properties of each direction."""

    round_trip_ms: float
    """Half of it one way."""
    loss: float = 0.0
    """Share of the packets, 0 to 1."""
    rate_mbits: float = 0.0
    """Of IP packets; 0: as fast as the relay can."""
    queue_bytes: int = 0
    """Bytes that may wait for the rate; more are dropped."""

    def arguments(self) -> list[str]:
        """For the relay."""
        words = ["--delay", str(round(self.round_trip_ms * 1e6 / 2)), "--loss", repr(self.loss)]
        if self.rate_mbits:
            words += ["--rate", str(round(self.rate_mbits * 1e6 / 8)), "--queue", str(self.queue_bytes)]
        return words


@dataclass(frozen=True)
class Wan:
    """A line that exists."""

    hosts: Hosts
    counts: dict[str, Any] = field(default_factory=dict)
    """The relay's counts, after it has ended: its seed, and for each direction the packets of the wire carried to the
    far end, those of them handed over (and their bytes) or lost, and those that found the queue full. Beside the line:
    the packets that a device refused or dropped, and how often the relay's memory was full."""


class _Relay:
    """The process, once its devices exist."""

    def __init__(self, program: Path, line: Line, namespaces: tuple[str, str]) -> None:
        seed = str(secrets.randbelow(1 << 32))
        command = [str(program), "--device", _INTERFACE, "--seed", seed, *line.arguments(), *namespaces]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise NetworkSetupError(f"{program}: {error.strerror}") from error
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], _ANSWER_S)[0]
        if not ready or not self._process.stdout.readline():
            raise self._failure()

    def _failure(self) -> NetworkSetupError:
        self._process.kill()
        said = self._process.communicate()[1]
        return NetworkSetupError(said.strip() or "the relay did not start")

    def end(self) -> dict[str, Any]:
        """Its counts.

        Raises:
            NetworkSetupError: it had ended before, or does not end.
        """
        try:
            counts, said = self._process.communicate(timeout=_ANSWER_S)  # closes its stdin
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise NetworkSetupError(f"the relay did not end within {_ANSWER_S:.0f} s") from None
        if self._process.returncode != 0:
            raise NetworkSetupError(said.strip() or f"the relay ended with status {self._process.returncode}")
        return dict(json.loads(counts))


def _configure(host: Host, congestion_control: str) -> None:
    # No link-local address: only tests and transports send through the line.
    link = f"link set {host.interface} addrgenmode none mtu {MTU} txqueuelen {_DEVICE_QUEUE} up"
    run(["ip", "-n", host.namespace, *link.split()])
    run(["ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface])
    route = f"route replace 10.0.1.0/24 dev {host.interface} src {host.address} congctl {congestion_control}"
    run(["ip", "-n", host.namespace, *route.split()])


def _dropped(host: Host) -> int:
    """Packets that found the device's queue full before the relay could read them."""
    shown = json.loads(run(["ip", "-n", host.namespace, "-s", "-j", "link", "show", "dev", host.interface]))
    return int(shown[0]["stats64"]["tx"]["dropped"])


@contextmanager
def wan(program: Path, line: Line, congestion_control: str) -> Iterator[Wan]:
    """Two hosts at the ends of a line. ``program`` is the relay; it ends with the block, which fills in the counts.

    Raises:
        NetworkSetupError: it cannot be set up, or the relay ended early.
    """
    with namespace("wana") as a, namespace("wanb") as b:
        hosts = (Host(a, _INTERFACE, _ADDRESSES[0]), Host(b, _INTERFACE, _ADDRESSES[1]))
        relay = _Relay(program, line, (a, b))
        there = Wan(hosts)
        dropped = [0, 0]
        try:
            for host in hosts:
                _configure(host, congestion_control)
            yield there
            dropped = [_dropped(host) for host in hosts]
        finally:
            there.counts.update(relay.end())
        for direction, count in zip(there.counts["directions"], dropped, strict=True):
            direction["dropped"] = count
