# SPDX-License-Identifier: MIT
"""Who is compared: the transports, ready to carry the load of a cell."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rank import RankSpec
from scenarios import KIB, Cell, Effort

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from bagua_net._nccl_wheel import SocketTable  # noqa: E402

#: In the order of the report's columns.
NAMES = ("bare", "nccl", "tuned", "ours")

#: Messages outstanding per connection: the steps that NCCL keeps (NCCL_STEPS).
_INFLIGHT = 8
#: What is sent through flow classes or a long line to see what they let through. For classes enough sockets for a hash
#: to miss none of eight (in 96 of 100 runs), few enough not to be limited by the processor.
_FILL_LANES = 40
_FILL_SIZE = 64 * KIB


@dataclass(frozen=True)
class Files:
    """The libraries in use."""

    loops: Path
    plugin: Path
    nccl: SocketTable
    relay: Path


@dataclass(frozen=True)
class Side:
    """A transport with its settings, and what it is to carry."""

    name: str
    spec: RankSpec
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""
    choice: str = ""
    """What was chosen for this side out of several settings, in words."""


def _load(cell: Cell, effort: Effort, loops: Path) -> RankSpec:
    warm_up_s, window_s = effort.times_for(cell)
    rounds = effort.rounds_for(cell.size)
    return RankSpec(
        rank=0,
        kind="bare",
        loops=str(loops),
        library="",
        table={},
        address="",
        sndbuf=0,
        work=cell.work,
        lanes=cell.connections,
        inflight=_INFLIGHT,
        size=cell.size,
        warm_up_s=warm_up_s,
        window_s=window_s,
        warm_up_rounds=rounds // 4,
        rounds=rounds,
        connect_timeout_s=30.0,
    )


def bare(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """Plain sockets, one per send buffer to choose from; with flow classes as many sockets as fill them; through a long
    line one per number of sockets to choose from."""
    spec = _load(cell, effort, files.loops)
    if cell.path == "wan":
        fill = replace(spec, inflight=1, size=_FILL_SIZE)
        return [Side("bare", replace(fill, lanes=lanes), choice=f"{lanes} sockets") for lanes in effort.bare_sockets]
    if cell.classes_mbits:
        fill = replace(spec, lanes=_FILL_LANES, inflight=1, size=_FILL_SIZE, sndbuf=_FILL_SIZE)
        return [Side("bare", fill, choice=f"{_FILL_LANES} sockets")]
    return [
        Side("bare", replace(spec, sndbuf=sndbuf), choice=f"SO_SNDBUF {sndbuf // KIB} KiB")
        for sndbuf in effort.bare_sndbuf
    ]


def _nccl(cell: Cell, effort: Effort, files: Files) -> RankSpec:
    table = {**dataclasses.asdict(files.nccl), "path": str(files.nccl.path)}
    return replace(_load(cell, effort, files.loops), kind="nccl", library=str(files.nccl.path), table=table)


def nccl(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """NCCL's Socket network as it comes."""
    return [Side("nccl", _nccl(cell, effort, files))]


def tuned(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """NCCL's Socket network, one per threads × sockets to choose from."""
    spec = _nccl(cell, effort, files)
    return [
        Side(
            "tuned",
            spec,
            {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)},
            f"{threads} × {sockets}",
        )
        for threads, sockets in effort.grid
    ]


def ours(cell: Cell, effort: Effort, files: Files, settings: Mapping[str, str]) -> list[Side]:
    """The plugin, with settings of its own where asked for."""
    spec = replace(_load(cell, effort, files.loops), kind="ours", library=str(files.plugin))
    return [Side("ours", spec, settings)]


def candidates(cell: Cell, effort: Effort, files: Files, settings: Mapping[str, str]) -> dict[str, list[Side]]:
    """For each name, the settings to choose from; one where there is nothing to choose."""
    return {
        "bare": bare(cell, effort, files),
        "nccl": nccl(cell, effort, files),
        "tuned": tuned(cell, effort, files),
        "ours": ours(cell, effort, files, settings),
    }
