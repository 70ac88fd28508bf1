# SPDX-License-Identifier: MIT
"""One host's part: it does what the doctor asks for, one request after another.

    python -m bagua_net._doctor.peers.host

reads requests as lines of JSON from its standard input and answers each with a line. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..._activation.status import status
from ..._errors import BaguaNetError
from ..._machine import interfaces
from ..._native.version import version
from ..._settings import identity, parameters
from .. import check, nccl_ranks, network, plugin
from ..nccl_ranks import RankProcess, Usable
from . import probe
from .probe import Answer, Listeners, Way

#: Begins each answer: whatever else a shell or a library writes is none.
MARK = "bagua-net-peer "
#: Raised whenever requests or answers change.
FORMAT = 3
#: One that nobody asks for that long has lost who asked.
_FORGOTTEN_S = 3600.0
#: What a host does at the most, whoever asks.
_MOST_FLOWS, _MOST_S = 64, 10.0
_NET = Path("/sys/class/net")
_DMI = Path("/sys/class/dmi/id")
#: Devices through which packets go inside of others: by DEVTYPE, and by their link's type (linux/if_arp.h).
_TUNNELS = ("vxlan", "geneve", "wireguard")
_TUNNEL_TYPES = {"768": "ipip", "769": "ip6tnl", "776": "sit", "778": "gre", "823": "ip6gre"}
_LOOPBACK_FLAG = 8  # IFF_LOOPBACK


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
    return kind if kind in _TUNNELS else _TUNNEL_TYPES.get(_read(_NET / name / "type"), "")


def _is_loopback(name: str) -> bool:
    return bool(int(_read(_NET / name / "flags") or "0", 16) & _LOOPBACK_FLAG)


def _own_ports() -> list[int]:
    """Of BAGUA_NET_PORT_RANGE; none: any port."""
    row = next((row for row in parameters.read() if row.name == "BAGUA_NET_PORT_RANGE"), None)
    if row is None or row.error or row.value == "0":
        return []
    first, _, last = row.value.partition("-")
    return [int(first), int(last or first)]


def _place() -> str:
    """The network that this process sees: of one kernel, one namespace."""
    return f"{_read(Path('/proc/sys/kernel/random/boot_id'))} {Path('/proc/self/ns/net').stat().st_ino}"


def _facts() -> dict[str, Any]:
    found = status()
    known = identity.of(parameters.read())
    rows = interfaces.scan()
    return {
        "format": FORMAT,
        "host": socket.gethostname(),
        "place": _place(),
        "version": version(),
        "on": found.on,
        "problem": found.problem or "",
        "identity": f"{known.fingerprint()}, {known.protection}",
        "nccl": found.nccl.full_name if found.nccl is not None else "",
        "interfaces": [asdict(row) | {"tunnel": _tunnel(row.name)} for row in rows if row.reason is None],
        "others": {row.address: row.name for row in rows if row.reason is not None and row.address},
        "left_out": {row.name: row.reason for row in rows if row.reason is not None and row.address},
        "ports": _own_ports(),
        "kernel_ports": list(network.kernels_ports()),
        "vendor": _read(_DMI / "sys_vendor"),
        "processors": len(os.sched_getaffinity(0)),
        "findings": [asdict(each) for each in check.run((*plugin.CHECKS, *network.CHECKS)) if each.verdict != "ok"],
    }


class Host:
    """What the doctor asks of this host."""

    def __init__(self) -> None:
        self._name = probe.new_name()
        self._listeners: list[Listeners] = []
        self._nccl: Usable | None = None
        self._rank: RankProcess | None = None
        self._does: dict[str, Callable[..., dict[str, Any]]] = {
            "facts": _facts,
            "clock": lambda: {"time": time.time()},
            "worked": lambda: {"clock": time.monotonic(), "seconds": probe.worked()},
            "listen": self._listen,
            "look": self._look,
            "passes": self._passes,
            "rate": self._rate,
            "nccl": self._choose_nccl,
            "start_rank": self._start_rank,
            "await_rank": self._await_rank,
            "end_rank": self._end_rank,
        }

    def do(self, request: Any) -> dict[str, Any]:
        """Its answer; with "error" where it cannot be done."""
        try:
            what = dict(request)
            return self._does[what.pop("do")](**what)
        except Exception as error:  # of another version, or what this machine lacks: one request, not the examination
            return {"error": f"{error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        for each in self._listeners:
            each.close()
        self._listeners.clear()
        if self._rank is not None:
            self._rank.end()

    def _listen(self, token: str, addresses: list[str], ports: list[int]) -> dict[str, Any]:
        """At a port of the range, and at any."""
        choice = range(ports[0], ports[1] + 1) if ports else (0,)
        made = [Listeners(self._name, token, addresses, each) for each in (choice, (0,))]
        self._listeners += made
        return {
            "name": self._name,
            "place": _place(),
            "ports": made[0].ports,
            "any": made[1].ports,
            "problems": made[0].problems,
        }

    def _look(self, token: str, hosts: list[dict[str, Any]]) -> dict[str, Any]:
        """From each interface that NCCL is offered to each address of the other hosts, of the same family, that this
        host does not have itself."""
        rows = interfaces.scan()
        nics = [row for row in rows if row.reason is None]
        own = {row.address for row in rows}
        ways, of = [], []
        for host in hosts:
            local = host["place"] == _place()
            for nic in nics if host["name"] != self._name else []:
                for address, port in host["ports"].items():
                    if (":" in nic.address) == (":" in address) and (local or address not in own):
                        bound = not local and not _is_loopback(nic.name)
                        ways.append(Way(nic.address, nic.name, address, port, bound))
                        of.append(host["name"])
        met: dict[str, list[Answer]] = {host["name"]: [] for host in hosts}
        for name, answer in zip(of, probe.look(ways, token), strict=True):
            met[name].append(answer)
        return {"answers": {name: [asdict(each) for each in answers] for name, answers in met.items()}}

    def _passes(self, token: str, way: list[Any], mss: int) -> dict[str, Any]:
        return probe.passes(Way(*way), token, mss)._asdict()

    def _rate(self, token: str, way: list[Any], flows: int, warm_s: float, seconds: float) -> dict[str, Any]:
        if not 1 <= flows <= _MOST_FLOWS or not 0 <= warm_s + seconds <= _MOST_S:
            raise ValueError(f"{flows} flows for {warm_s + seconds} s")
        return asdict(probe.rate(Way(*way), token, flows, warm_s, seconds))

    # ---- a rank of a job over NCCL ----

    def _choose_nccl(self) -> dict[str, Any]:
        try:
            self._nccl = nccl_ranks.choose("auto")
        except BaguaNetError as error:
            return {"nccl": "", "problem": str(error)}
        return {"nccl": f"NCCL {'.'.join(map(str, self._nccl.version))}", "problem": ""}

    def _start_rank(self, rank: int, nranks: int, unique_id: str) -> dict[str, Any]:
        """Rank 0 answers with NCCL's id, and the others are given it."""
        if self._nccl is None or self._rank is not None:
            raise ValueError("a rank needs an NCCL, and is the only one here")
        where = f"{nranks} hosts"
        self._rank = RankProcess(rank, nranks, where, self._nccl.library, self._nccl.variables)
        if rank == 0:
            return {"unique_id": self._rank.give_id(nccl_ranks.TIMEOUT_S).hex()}
        self._rank.take_id(bytes.fromhex(unique_id))
        return {"unique_id": unique_id}

    def _await_rank(self, seconds: float) -> dict[str, Any]:
        if self._rank is None or not 0 <= seconds <= _MOST_S:
            raise ValueError(f"no rank to wait for {seconds} s")
        return {"code": self._rank.code(seconds)}

    def _end_rank(self) -> dict[str, Any]:
        return {} if self._rank is None else asdict(self._rank.report())


def _end_when_forgotten() -> threading.Timer:
    timer = threading.Timer(_FORGOTTEN_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    return timer


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    timer = _end_when_forgotten()
    for name, value in json.loads(sys.stdin.readline() or "{}").items():
        os.environ.setdefault(name, value)
    with contextlib.closing(Host()) as host:
        for line in sys.stdin:
            timer.cancel()
            timer = _end_when_forgotten()
            print(MARK + json.dumps(host.do(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
