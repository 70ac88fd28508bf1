# SPDX-License-Identifier: MIT
"""One rank: a process that ``launch`` starts, with an :class:`Assignment` as its argument.

It writes its events as JSON lines to the descriptor in the assignment. Its exit code tells its own fault from the
consequence of another rank's.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn, TextIO

from ..._errors import BaguaNetError
from ..._machine import processors
from ..._machine.parent import die_with
from ..transports.base import NetworkFailed, Place, Transport, Unavailable
from ..transports.registry import Kinds, kinds, survey
from ..workload.config import Config
from .measure import Bench
from .rendezvous import Client, RendezvousFailed

#: The run's token, for the rendezvous. Not an argument: all users of the machine can read those.
TOKEN_VARIABLE = "BAGUA_NET_BENCH_TOKEN"

EXIT_OWN_FAULT = 1
EXIT_NETWORK = 4
EXIT_OTHER_RANK = 5


@dataclass(frozen=True)
class Assignment:
    config: str
    """A Config as JSON."""
    rank: int
    names: tuple[str, ...]
    """The networks that this process measures."""
    member: int
    """Its number among all processes of the run; 0 to ``members`` - 1. Number 0 reports."""
    members: int
    host: str
    """Of the rendezvous."""
    port: int
    events: int
    """A descriptor to write to."""
    parent: int
    """Process id."""
    share: tuple[int, int] = (0, 1)
    """Of the host's ranks: (the number of this one, how many there are)."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Assignment:
        fields = json.loads(text)
        return Assignment(**{**fields, "names": tuple(fields["names"]), "share": tuple(fields["share"])})


def _end(error: BaguaNetError) -> NoReturn:
    """Ends this process from any thread, with the error for the parent."""
    print(error, file=sys.stderr, flush=True)
    codes = {RendezvousFailed: EXIT_OTHER_RANK, NetworkFailed: EXIT_NETWORK}
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), EXIT_OWN_FAULT)
    os._exit(code)  # bypasses torch, whose exit waits for its peers


def _agree(config: Config, task: Assignment, rendezvous: Client, known: Kinds) -> tuple[dict[str, str], dict[str, str]]:
    """(networks that all their processes can measure, networks that one of them cannot), each with its text.

    Raises:
        Unavailable: a network requested by name cannot be measured, or none can.
        BaguaNetError: the ranks were started with different options.
    """
    same = replace(config, nccl="", net_plugin="another" if config.net_plugin else "")  # files may lie anywhere
    options = hashlib.sha256(same.to_json().encode()).hexdigest()
    mine = {"options": options, "survey": survey(config, list(task.names), known), "rank": task.rank}
    rows = rendezvous.all_gather(mine)
    if any(row["options"] != rows[0]["options"] for row in rows):
        other = next(row["rank"] for row in rows if row["options"] != rows[0]["options"])
        raise BaguaNetError(f"rank {other} was started with other options than rank 0; use the same on every host")
    usable: dict[str, str] = {}
    missing: dict[str, str] = {}
    for row in rows:
        for name, (there, text) in row["survey"].items():
            (usable if there else missing).setdefault(name, text)
            if there and text != usable[name]:
                unlike = f"rank {row['rank']} has {text}, and others {usable[name]}: use one everywhere"
                missing.setdefault(name, unlike)
    for name in [name for name in missing if name in usable]:
        lacking = [row["rank"] for row in rows if not row["survey"].get(name, (True, ""))[0]]
        missing[name] = f"on rank {lacking[0]}: {missing[name]}" if lacking else missing[name]
    usable = {name: usable[name] for name in known(config.device) if name in usable and name not in missing}
    for name in config.transports:
        if name in missing:
            raise Unavailable(f"{name} cannot be measured: {missing[name]}")
    if not usable:
        reasons = "; ".join(f"{name}: {text}" for name, text in missing.items())
        raise Unavailable(f"nothing can be measured here ({reasons})")
    return usable, missing


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _local_host(rendezvous: Client) -> str:
    """This host's address, by which the other ranks can reach it. Where a host's own name is on loopback, as Debian
    and Ubuntu have it, its ranks reach the server there; then those of other hosts know its address."""
    seen = rendezvous.all_gather(rendezvous.server_host)
    local = rendezvous.local_host
    if not _is_loopback(local):
        return local
    return next((address for address in seen if not _is_loopback(address)), local)


def _connect(
    config: Config, task: Assignment, rendezvous: Client, names: list[str], known: Kinds
) -> dict[str, Transport | None]:
    """The run's transports, connected; None for those in another process."""
    place = Place(task.rank, _local_host(rendezvous), _end)
    transports: dict[str, Transport | None] = {}
    for name in names:
        transport = known(config.device)[name].open(config, place) if name in task.names else None
        mine = {"rank": task.rank, "row": transport.row.hex() if transport else None}
        rows = rendezvous.all_gather(mine)
        if transport is not None:
            theirs = {row["rank"]: bytes.fromhex(row["row"]) for row in rows if row["row"] is not None}
            transport.connect([theirs[rank] for rank in range(config.nranks)])
        transports[name] = transport
    return transports


def _evidence(rendezvous: Client, transports: dict[str, Transport | None]) -> dict[str, list[str]]:
    """Each network's lines about itself, as the lowest rank has them. The same on every rank."""
    mine = {name: transport.evidence for name, transport in transports.items() if transport is not None}
    found: dict[str, list[str]] = {name: [] for name in transports}
    for row in rendezvous.all_gather(mine):
        for name, lines in row.items():
            found[name] = found[name] or lines
    return found


def run(task: Assignment, token: str, events: TextIO, known: Kinds = kinds) -> None:
    """Takes part in the run until its end. Member 0 reports. ``known``: the same on every rank."""

    def report(**event: Any) -> None:
        if task.member == 0:
            print(json.dumps(event), file=events, flush=True)

    config = Config.from_json(task.config)
    if config.device == "emulated":
        # The threads that play a kernel poll memory as a GPU does. Each rank shares its processors with its own alone.
        processors.bind(*task.share)
    with Client(task.host, task.port, token, task.member, task.members, config.timeout) as rendezvous:
        usable, missing = _agree(config, task, rendezvous, known)
        report(event="start", usable=usable, missing=missing)
        transports = _connect(config, task, rendezvous, list(usable), known)
        report(event="connected", evidence=_evidence(rendezvous, transports))
        for rows in Bench(config, rendezvous, task.rank, transports).run():
            report(event="rows", rows=[asdict(row) for row in rows])
        for transport in transports.values():
            if transport is not None:
                transport.close()
        rendezvous.barrier()  # no rank leaves while another one still closes


def main() -> None:
    task = Assignment.from_json(sys.argv[1])
    die_with(task.parent)
    with os.fdopen(task.events, "w") as events:
        try:
            run(task, os.environ[TOKEN_VARIABLE], events)
        except BaguaNetError as error:
            _end(error)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(EXIT_OWN_FAULT)


if __name__ == "__main__":
    main()
