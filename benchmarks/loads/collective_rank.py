# SPDX-License-Identifier: MIT
"""One rank of a collective: a process that takes part in a run of ``bagua-net bench`` and ends.

Like rank.py it is controlled by lines of JSON through stdin and stdout. The parent sends a
:class:`CollectiveRankSpec`; the first rank answers with the port of the rendezvous; the parent sends its address to
all. The first rank then passes on the events of the run. Every rank ends with ``{"event": "end"}``, or with
``{"error": …}``.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bagua_net._bench.ranks import process as bench_rank
from bagua_net._bench.ranks.rendezvous import Server
from bagua_net._bench.transports import registry
from bagua_net._bench.transports.base import Kind
from bagua_net._bench.workload.config import Config
from bagua_net._native import library
from benchmarks.codecs import staged
from benchmarks.loads.ipc import serve


@dataclass(frozen=True)
class CollectiveRankSpec:
    """What one rank does."""

    rank: int
    ranks: int
    op: str
    """A name of ``bagua_net._bench.workload.ops.OPS``."""
    device: str
    """"cpu" or "emulated"."""
    nccl: str
    """Path of the NCCL of emulated GPUs."""
    transport: str
    """This process's: a name of :func:`_kinds`."""
    transports: tuple[str, ...]
    """Those of the run, which take turns; each has its own processes."""
    library: str
    """Path of the plugin, which also contains the collectives."""
    address: str
    """Of this rank's host."""
    token: str
    """Keeps other processes out of the rendezvous."""
    sizes: tuple[int, ...]
    """Bytes."""
    rounds: int
    seconds: float
    """Approximate length of a round of calls."""
    timeout_s: float
    redop: str = "sum"
    """A key of ``bagua_net._bench.workload.elements.REDUCTIONS``."""


def _config(spec: CollectiveRankSpec) -> Config:
    turns = len(spec.sizes) * len(spec.transports) * (spec.rounds + 2)
    return Config(
        nranks=spec.ranks,
        op=spec.op,
        redop=spec.redop,
        device=spec.device,
        nccl=spec.nccl,
        sizes=spec.sizes,
        transports=spec.transports,
        rounds=spec.rounds,
        seconds=turns * spec.seconds,
        timeout=spec.timeout_s,
    )


def _kinds(device: str) -> dict[str, Kind]:
    """Those of ``bagua-net bench``, and those that are only for comparison."""
    return {**registry.kinds(device), **(staged.KINDS if device == "cpu" else {})}


def _number(spec: CollectiveRankSpec) -> int:
    """Among all processes of the run; 0 hosts the rendezvous."""
    return spec.transports.index(spec.transport) * spec.ranks + spec.rank


def _members(spec: CollectiveRankSpec) -> int:
    return len(spec.transports) * spec.ranks


def _assignment(spec: CollectiveRankSpec, host: str, port: int) -> bench_rank.Assignment:
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
        share=(spec.rank, spec.ranks),
    )


def _take_part(out: TextIO) -> None:
    fields = json.loads(sys.stdin.readline())
    spec = CollectiveRankSpec(**{**fields, **{name: tuple(fields[name]) for name in ("transports", "sizes")}})
    library.use(Path(spec.library))
    with ExitStack() as stack:
        if _number(spec) == 0:
            server = stack.enter_context(Server(_members(spec), spec.token, spec.address, 0, spec.timeout_s))
            print(json.dumps({"port": server.port}), file=out)
        rendezvous = json.loads(sys.stdin.readline())
        bench_rank.run(_assignment(spec, rendezvous["host"], rendezvous["port"]), spec.token, out, _kinds)
    print(json.dumps({"event": "end"}), file=out)


if __name__ == "__main__":
    serve(_take_part)
