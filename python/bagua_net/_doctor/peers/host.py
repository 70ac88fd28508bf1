# SPDX-License-Identifier: MIT
"""One host's part: it does what the doctor asks for, one request after another.

    python -m bagua_net._doctor.peers.host

reads requests as lines of JSON from its standard input and answers each with a line. It ends with its input.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..._activation.status import status
from ..._errors import BaguaNetError
from ..._machine import interfaces
from ..._native.version import version
from ..._settings import parameters
from .. import check, network, plugin
from . import probe
from .probe import Listeners, Way

#: Begins each answer: whatever else a shell or a library writes is none.
MARK = "bagua-net-peer "
_NET = Path("/sys/class/net")
_DMI = Path("/sys/class/dmi/id")
#: Types of a device, as the kernel names them, through which packets go inside of others.
_TUNNELS = ("vxlan", "geneve", "wireguard", "gre", "ipip", "sit")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _tunnel(name: str) -> str:
    """The kind of tunnel that the interface is; "": none."""
    if (_NET / name / "tun_flags").exists():
        return "tun"
    kind = next((row[8:] for row in _read(_NET / name / "uevent").splitlines() if row.startswith("DEVTYPE=")), "")
    return kind if kind in _TUNNELS else ""


def _own_ports() -> list[int]:
    """Of BAGUA_NET_PORT_RANGE; none: any port."""
    row = next((row for row in parameters.read() if row.name == "BAGUA_NET_PORT_RANGE"), None)
    if row is None or row.error or row.value == "0":
        return []
    first, _, last = row.value.partition("-")
    return [int(first), int(last or first)]


def _facts() -> dict[str, Any]:
    found = status()
    rows = interfaces.scan()
    offered = [asdict(row) | {"tunnel": _tunnel(row.name)} for row in rows if row.reason is None]
    return {
        "host": socket.gethostname(),
        "version": version(),
        "on": found.on,
        "problem": found.problem or "",
        "nccl": found.nccl.full_name if found.nccl is not None else "",
        "interfaces": offered,
        "left_out": [asdict(row) for row in rows if row.reason is not None and row.address],
        "ports": _own_ports(),
        "kernel_ports": list(network.kernels_ports()),
        "vendor": _read(_DMI / "sys_vendor"),
        "processors": len(os.sched_getaffinity(0)),
        "findings": [asdict(each) for each in check.run((*plugin.CHECKS, *network.CHECKS)) if each.verdict != "ok"],
    }


class Host:
    """What the doctor asks of this host."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._listeners: list[Listeners] = []
        self._does: dict[str, Callable[..., dict[str, Any]]] = {
            "facts": _facts,
            "clock": lambda: {"time": time.time()},
            "listen": self._listen,
            "look": self._look,
            "passes": self._passes,
            "rate": self._rate,
        }

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer; with "error" where it cannot be done."""
        what = dict(request)
        try:
            return self._does[what.pop("do")](**what)
        except (OSError, ValueError, BaguaNetError) as error:
            return {"error": str(error)}

    def close(self) -> None:
        for each in self._listeners:
            each.close()
        self._listeners.clear()

    def _listen(self, token: str, addresses: list[str], ports: list[int]) -> dict[str, Any]:
        """At a port of the range, and at any."""
        choice = range(ports[0], ports[1] + 1) if ports else (0,)
        made = [Listeners(self._name, token, addresses, each) for each in (choice, (0,))]
        self._listeners += made
        return {"name": self._name, "ports": made[0].ports, "any": made[1].ports}

    def _look(self, token: str, ways: list[list[Any]]) -> dict[str, Any]:
        return {"answers": [asdict(each) for each in probe.look([Way(*way) for way in ways], token)]}

    def _passes(self, token: str, way: list[Any], mss: int) -> dict[str, Any]:
        return {"passes": probe.passes(Way(*way), token, mss)}

    def _rate(self, token: str, way: list[Any], flows: int, warm_s: float, seconds: float) -> dict[str, Any]:
        return asdict(probe.rate(Way(*way), token, flows, warm_s, seconds))


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for name, value in json.loads(sys.stdin.readline() or "{}").items():
        os.environ.setdefault(name, value)
    host = Host()
    for line in sys.stdin:
        print(MARK + json.dumps(host.do(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
