# SPDX-License-Identifier: MIT
"""One rank of a collective: a process that takes part in a run of ``bagua-net bench`` and ends.

The parent speaks lines of JSON through stdin and stdout, as with rank.py: it sends a :class:`MemberSpec`; the first
rank answers with the port at which the ranks meet; all are told where that is. It then passes on the run's events, and
every rank ends with ``{"event": "end"}``, and ``{"error": …}`` is for trouble.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))

from conversation import converse

from bagua_net._bench.ranks import process as bench_rank
from bagua_net._bench.ranks.rendezvous import Server
from bagua_net._bench.workload.config import Config
from bagua_net._native import library

_OP = "allreduce"


@dataclass(frozen=True)
class MemberSpec:
    """What one rank does."""

    rank: int
    ranks: int
    transport: str
    """This process's: a name of ``bagua_net._bench.transports.registry.kinds("cpu")``."""
    transports: tuple[str, ...]
    """Those of the run, which take turns; each has processes of its own."""
    library: str
    """Path of the plugin, which also has the collectives."""
    address: str
    """Of this rank's host."""
    token: str
    """Keeps other processes out of the meeting."""
    sizes: tuple[int, ...]
    """Bytes."""
    rounds: int
    seconds: float
    """About how long a round of calls takes."""
    timeout_s: float


def _config(spec: MemberSpec) -> Config:
    turns = len(spec.sizes) * len(spec.transports) * (spec.rounds + 2)
    return Config(
        nranks=spec.ranks,
        op=_OP,
        sizes=spec.sizes,
        transports=spec.transports,
        rounds=spec.rounds,
        seconds=turns * spec.seconds,
        timeout=spec.timeout_s,
    )


def _number(spec: MemberSpec) -> int:
    """Among all processes of the run; 0 is its host."""
    return spec.transports.index(spec.transport) * spec.ranks + spec.rank


def _members(spec: MemberSpec) -> int:
    return len(spec.transports) * spec.ranks


def _assignment(spec: MemberSpec, host: str, port: int) -> bench_rank.Assignment:
    return bench_rank.Assignment(
        config=_config(spec).to_json(),
        rank=spec.rank,
        names=(spec.transport,),
        member=_number(spec),
        members=_members(spec),
        host=host,
        port=port,
        events=-1,
        parent=os.getppid(),
    )


def _take_part(out: TextIO) -> None:
    fields = json.loads(sys.stdin.readline())
    spec = MemberSpec(**{**fields, **{name: tuple(fields[name]) for name in ("transports", "sizes")}})
    library.use(Path(spec.library))
    with ExitStack() as stack:
        if _number(spec) == 0:
            server = stack.enter_context(Server(_members(spec), spec.token, spec.address, 0, spec.timeout_s))
            print(json.dumps({"port": server.port}), file=out)
        meeting = json.loads(sys.stdin.readline())
        bench_rank.run(_assignment(spec, meeting["host"], meeting["port"]), spec.token, out)
    print(json.dumps({"event": "end"}), file=out)


if __name__ == "__main__":
    converse(_take_part)
