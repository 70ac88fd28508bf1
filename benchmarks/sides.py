# SPDX-License-Identifier: MIT
"""Who is compared: the transports, ready to carry the load of a cell."""

from __future__ import annotations

import dataclasses
import importlib.util
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from member import MemberSpec
from network import Hosts
from pair import measure
from rank import RankSpec
from reading import Reading
from scenarios import KIB, TORCH, Cell, Effort
from sweep import SweepSpec, sweep

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # behind an installed package, which brings its library along

import bagua_net  # noqa: E402
from bagua_net._nccl.socket_network import LIBRARY_VARIABLE, SocketTable  # noqa: E402

#: In the order of the report's columns.
NAMES = ("bare", "nccl", "tuned", "gloo", "ours")
NEED_NCCL = frozenset({"nccl", "tuned"})

#: Scenario → side → what `bagua-net bench` calls it.
_TRANSPORTS = {
    "S7": {"nccl": "nccl-socket", "gloo": "gloo", "ours": "bagua"},
    TORCH: {"gloo": "gloo", "ours": "torch+bagua"},
}
#: The collectives drive net tables from this version on.
_OLDEST_COLLECTIVE_API = 8
_COLLECTIVE_TIMEOUT_S = 120.0
_SLOWEST_COLLECTIVE_GBS = 0.005

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
    nccl: SocketTable | None
    """None: there is none, and no side needs it."""
    relay: Path


@dataclass(frozen=True)
class Side:
    """A transport with its settings, and what it is to carry."""

    name: str
    spec: RankSpec | SweepSpec
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""
    choice: str = ""
    """What was chosen for this side out of several settings, in words."""


def _load(cell: Cell, effort: Effort, loops: Path) -> RankSpec:
    warm_up_s, window_s = effort.times_for(cell)
    rounds = effort.rounds_for(cell.size)
    peers = cell.ranks - 1
    return RankSpec(
        rank=0,
        ranks=cell.ranks,
        devices=1,
        nap_us=cell.nap_us,
        kind="bare",
        loops=str(loops),
        library="",
        table={},
        address="",
        sndbuf=0,
        work=cell.work,
        lanes=peers * cell.connections,
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
    assert files.nccl is not None
    table = {**dataclasses.asdict(files.nccl), "path": str(files.nccl.path)}
    return replace(_load(cell, effort, files.loops), kind="nccl", library=str(files.nccl.path), table=table)


def nccl(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """NCCL's Socket network as it comes, with its connections spread over all network cards."""
    spec = replace(_nccl(cell, effort, files), devices=max(1, len(cell.cables_mbits)))
    return [Side("nccl", spec)]


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
    """The plugin, with settings of its own where asked for; several network cards are one device of it."""
    spec = replace(_load(cell, effort, files.loops), kind="ours", library=str(files.plugin))
    bond = {"BAGUA_NET_BOND": "1"} if cell.cables_mbits else {}
    return [Side("ours", spec, {**bond, **settings})]


def _collective(name: str, block: Sequence[Cell], effort: Effort, files: Files, settings: Mapping[str, str]) -> Side:
    """An allreduce of the sizes of a block."""
    member = MemberSpec(
        rank=0,
        ranks=block[0].ranks,
        transport=_TRANSPORTS[block[0].scenario][name],
        transports=(),
        library=str(files.plugin),
        address="",
        token=secrets.token_hex(16),
        sizes=tuple(cell.size for cell in block),
        rounds=effort.collective_rounds,
        seconds=effort.collective_s,
        timeout_s=_COLLECTIVE_TIMEOUT_S,
    )
    nccl = {LIBRARY_VARIABLE: str(files.nccl.path)} if files.nccl is not None else {}
    own = {"nccl": nccl, "ours": settings}.get(name, {})
    return Side(name, SweepSpec(member, _SLOWEST_COLLECTIVE_GBS), own)


def backend_sources() -> list[Path]:
    """What of the package runs in each call through torch.distributed."""
    package = Path(bagua_net.__file__).parent
    return [package / "_torch_backend.py", *sorted((package / "torch").glob("*.py"))]


def candidates(
    block: Sequence[Cell], name: str, effort: Effort, files: Files, settings: Mapping[str, str]
) -> list[Side]:
    """The settings of this side to choose from; one where there is nothing to choose. ``settings``: the plugin's."""
    cell = block[0]
    if cell.work == "allreduce":
        return [_collective(name, block, effort, files, settings)]
    if name == "ours":
        return ours(cell, effort, files, settings)
    return {"bare": bare, "nccl": nccl, "tuned": tuned}[name](cell, effort, files)


def obstacle(cell: Cell, name: str, files: Files) -> str:
    """Why this side cannot take part in a cell, in a few words; "" where it can."""
    if (name == "gloo" or cell.scenario == TORCH) and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if name not in NEED_NCCL:
        return ""
    if files.nccl is None:
        return "no NCCL is installed"
    if cell.work == "allreduce" and files.nccl.api < _OLDEST_COLLECTIVE_API:
        return f"the collectives drive NCCL from 2.20 on, and this is {files.nccl.nccl_version}"
    return ""


def companies(sides: Sequence[Side], cell: Cell) -> list[Sequence[Side]]:
    """Who is read at a time: each alone, or all in turn."""
    return [sides] if cell.heading.together else [[side] for side in sides]


def read(company: Sequence[Side], hosts: Hosts) -> list[list[Reading]]:
    """For each side one reading for each cell of the block.

    Raises:
        RankFailed: a rank failed.
    """
    parts = [(side.spec, side.settings) for side in company if isinstance(side.spec, SweepSpec)]
    if parts:
        return sweep(parts, hosts)
    (side,) = company
    assert isinstance(side.spec, RankSpec)
    return [[measure(side.spec, hosts, side.settings)]]
