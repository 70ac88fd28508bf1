# SPDX-License-Identifier: MIT
"""The sides of a comparison: transports with their settings, ready to carry the load of a cell."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import bagua_net
from bagua_net._native.plugin import NETWORK_NAME
from bagua_net._nccl import net_plugin
from bagua_net._nccl.discovery import LIBRARY_VARIABLE
from bagua_net._nccl.socket_network import SocketTable
from benchmarks.loads.collective import CollectiveSpec, measure_collective
from benchmarks.loads.collective_rank import CollectiveRankSpec
from benchmarks.loads.load import measure
from benchmarks.loads.rank import RankSpec
from benchmarks.loads.reading import Reading
from benchmarks.loads.shared import measure_shared
from benchmarks.networks.namespaces import Hosts
from benchmarks.networks.shared import Shared
from benchmarks.run.effort import Effort
from benchmarks.run.scenarios import KIB, MIB, TORCH, WHOLE_NCCL, Cell

#: In the order of the report's columns. "baseline" is another build of the plugin.
NAMES = ("raw", "nccl", "tuned", "gloo", "one stream", "baseline", "ours")

#: Scenario → side → its name in `bagua-net bench`.
_TRANSPORTS = {
    "S7": {"nccl": "nccl-socket", "tuned": "nccl-socket", "gloo": "gloo", "baseline": "bagua", "ours": "bagua"},
    WHOLE_NCCL: {"nccl": "nccl", "tuned": "nccl", "baseline": "nccl+bagua", "ours": "nccl+bagua"},
    TORCH: {"gloo": "gloo", "ours": "torch+bagua"},
}
#: The collectives drive net tables from this version on.
_OLDEST_COLLECTIVE_API = 8
_COLLECTIVE_TIMEOUT_S = 120.0
_SLOWEST_COLLECTIVE_GBS = 0.005

#: Messages outstanding per connection, as in NCCL (NCCL_STEPS).
_INFLIGHT = 8
#: The load of raw sockets through flow classes or a long line. For classes: enough sockets for the hash to reach all
#: eight (in 96 of 100 runs), few enough not to be limited by the processor.
_FILL_LANES = 40
_FILL_SIZE = 64 * KIB


@dataclass(frozen=True)
class Files:
    """The libraries and programs in use."""

    loops: Path
    """libtraffic.so."""
    plugin: Path
    nccl: SocketTable | None
    """None: not installed, and no side needs it."""
    relay: Path
    baseline: Path | None = None
    """Another build of the plugin."""


@dataclass(frozen=True)
class Side:
    """A transport with its settings and its load."""

    name: str
    spec: RankSpec | CollectiveSpec
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""
    choice: str = ""
    """The setting in words, where there are several."""
    varies: str = ""
    """The setting of which this is a variant: it is read where that one is among the best."""


def _load(cell: Cell, effort: Effort, loops: Path) -> RankSpec:
    warm_up_s, window_s = effort.times_for(cell)
    rounds = effort.rounds_for(cell.size)
    peers = cell.ranks - 1
    return RankSpec(
        rank=0,
        ranks=cell.ranks,
        devices=1,
        nap_us=cell.nap_us,
        kind="raw",
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
        together=cell.together or peers * cell.connections,
        coupled=False,
    )


def _show(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def raw(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """Raw sockets, one side for each send buffer to choose from. Through flow classes: enough sockets to fill them.
    Over a long line: one side for each number of sockets to choose from."""
    spec = _load(cell, effort, files.loops)
    if cell.path == "wan":
        fill = replace(spec, inflight=1, size=_FILL_SIZE)
        return [Side("raw", replace(fill, lanes=lanes), choice=f"{lanes} sockets") for lanes in effort.raw_sockets]
    if cell.classes_mbits:
        fill = replace(spec, lanes=_FILL_LANES, inflight=1, size=_FILL_SIZE, sndbuf=_FILL_SIZE)
        return [Side("raw", fill, choice=f"{_FILL_LANES} sockets")]
    return [
        Side("raw", replace(spec, sndbuf=sndbuf), choice=f"SO_SNDBUF {sndbuf // KIB} KiB")
        for sndbuf in effort.raw_sndbuf
    ]


def _nccl(cell: Cell, effort: Effort, files: Files) -> RankSpec:
    assert files.nccl is not None
    table = {**dataclasses.asdict(files.nccl), "path": str(files.nccl.path)}
    return replace(_load(cell, effort, files.loops), kind="nccl", library=str(files.nccl.path), table=table)


def nccl(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """NCCL's Socket network with its default settings, its connections spread over all network cards."""
    spec = replace(_nccl(cell, effort, files), devices=max(1, len(cell.cables_mbits)))
    return [Side("nccl", spec)]


Choice = tuple[dict[str, str], str]
"""(environment variables, the setting in words)"""


def _sockets(threads: int, sockets: int, sndbuf: int) -> Choice:
    """(environment variables, the setting in words). 0 leaves a variable unset."""
    settings, words = {}, "default sockets"
    if threads:
        settings = {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)}
        words = f"{threads} × {sockets}"
    if sndbuf:
        settings["NCCL_SOCKET_SNDBUF"] = str(sndbuf)
        words += f", {_show(sndbuf)}"
    return settings, words


def _cut(choice: Choice, inline: int, task: int) -> Choice:
    """The same setting, and how messages are cut."""
    settings, words = dict(choice[0]), choice[1]
    if inline:
        settings["NCCL_SOCKET_INLINE"] = str(inline)
        words += f", inline {_show(inline)}"
    if task:
        settings["NCCL_SOCKET_MIN_TASKSIZE"] = str(task)
        words += f", tasks of {_show(task)}"
    return settings, words


def tuned(cell: Cell, effort: Effort, files: Files) -> list[Side]:
    """NCCL's Socket network, one side for each setting to choose from: threads × sockets × send buffer, and each of
    these with all other ways to cut messages."""
    spec = replace(_nccl(cell, effort, files), devices=max(1, len(cell.cables_mbits)))
    few, long_line = cell.heading.few_settings, cell.path == "wan"
    buffers = effort.wan_nccl_sndbuf if long_line else effort.nccl_sndbuf
    grid = effort.small_grid if few else effort.wan_grid if long_line else effort.grid
    plain = [_sockets(threads, sockets, size) for threads, sockets in grid for size in buffers]
    found = [Side("tuned", spec, *choice) for choice in plain]
    for choice in () if few or long_line else plain:
        cuts = [_cut(choice, inline, task) for inline, task in effort.nccl_cuts]
        found += [Side("tuned", spec, variables, words, choice[1]) for variables, words in cuts]
    return found


def _plugin(name: str, files: Files) -> Path:
    """The library of "ours", "one stream" or "baseline"."""
    if name == "baseline":
        assert files.baseline is not None
        return files.baseline
    return files.plugin


def plugin(name: str, cell: Cell, effort: Effort, files: Files, settings: Mapping[str, str]) -> list[Side]:
    """The plugin or its baseline, with the settings asked for. Several network cards are one device of it."""
    spec = replace(_load(cell, effort, files.loops), kind="ours", library=str(_plugin(name, files)))
    bond = {"BAGUA_NET_BOND": "1"} if cell.cables_mbits else {}
    return [Side(name, spec, {**bond, **settings})]


def _network_of_nccl(name: str, files: Files) -> dict[str, str]:
    """The variables with which NCCL itself, on emulated GPUs, takes this side's network."""
    assert files.nccl is not None
    path = files.nccl.path
    chosen = {LIBRARY_VARIABLE: str(path), "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
    if name in ("baseline", "ours"):
        major, minor, patch = map(int, files.nccl.nccl_version.split("."))
        chosen |= net_plugin.variables(_plugin(name, files), (major, minor, patch))
        chosen["NCCL_NET"] = NETWORK_NAME
    return chosen


def _environments(name: str, cell: Cell, effort: Effort, files: Files, settings: Mapping[str, str]) -> list[Choice]:
    """(environment variables, the setting in words) of a collective; several to choose from for "tuned"."""
    own = settings if name in ("baseline", "ours") else {}
    if cell.scenario == WHOLE_NCCL:
        own = {**_network_of_nccl(name, files), **own}
    elif name in ("nccl", "tuned") and files.nccl:
        own = {LIBRARY_VARIABLE: str(files.nccl.path)}
    if name != "tuned":
        return [(dict(own), "")]
    free = not cell.classes_mbits and cell.path != "wan"
    tried = effort.collective_settings if free else effort.capped_collective_settings
    return [({**own, **variables}, words) for variables, words in (_sockets(*each) for each in tried)]


def _collective(
    name: str, block: Sequence[Cell], effort: Effort, files: Files, settings: Mapping[str, str]
) -> list[Side]:
    """A collective of the sizes of a block."""
    cell = block[0]
    rank = CollectiveRankSpec(
        rank=0,
        ranks=cell.ranks,
        op=cell.op,
        device="emulated" if cell.scenario == WHOLE_NCCL else "cpu",
        nccl=str(files.nccl.path) if files.nccl else "",
        transport=_TRANSPORTS[cell.scenario][name],
        transports=(),
        library=str(_plugin(name, files)),
        address="",
        token=secrets.token_hex(16),
        sizes=tuple(cell.size for cell in block),
        rounds=effort.collective_rounds,
        seconds=effort.collective_s,
        timeout_s=_COLLECTIVE_TIMEOUT_S,
    )
    spec = CollectiveSpec(rank, _SLOWEST_COLLECTIVE_GBS)
    choices = _environments(name, cell, effort, files, settings)
    return [Side(name, spec, variables, words) for variables, words in choices]


def backend_sources() -> list[Path]:
    """The Python sources of the package that run in each call through torch.distributed."""
    package = Path(bagua_net.__file__).parent
    return [package / "_torch_backend.py", *sorted((package / "torch").glob("*.py"))]


def _settings_of(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What is asked for with --set, for this side."""
    alone = "ours:"
    return {
        variable.removeprefix(alone): value
        for variable, value in settings.items()
        if name == "ours" or not variable.startswith(alone)
    }


def candidates(
    block: Sequence[Cell], name: str, effort: Effort, files: Files, settings: Mapping[str, str]
) -> list[Side]:
    """The settings of this side to choose from; one where there is no choice. ``settings``: the plugin's."""
    cell = block[0]
    settings = _settings_of(name, settings)
    if cell.work == "collective":
        return _collective(name, block, effort, files, settings)
    if name in ("baseline", "ours"):
        return plugin(name, cell, effort, files, settings)
    if name == "one stream":
        return plugin(name, cell, effort, files, {**settings, "BAGUA_NET_NSTREAMS": "1"})
    return {"raw": raw, "nccl": nccl, "tuned": tuned}[name](cell, effort, files)


def _abi_version(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).bnet_abi_version())


def needs_nccl(scenario: str, name: str) -> bool:
    """Does this side need an NCCL?"""
    return scenario == WHOLE_NCCL or name in ("nccl", "tuned")


def obstacle(cell: Cell, name: str, files: Files) -> str:
    """Why this side cannot take part in a cell, in a few words; "" where it can."""
    if (name == "gloo" or cell.scenario == TORCH) and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if name == "baseline" and files.baseline is None:
        return "no --baseline was given"
    if name == "baseline" and cell.scenario == "S7" and files.baseline is not None:
        versions = [_abi_version(library) for library in (files.baseline, files.plugin)]
        if versions[0] != versions[1]:
            return f"its collectives have ABI version {versions[0]}, and this package calls version {versions[1]}"
    if not needs_nccl(cell.scenario, name):
        return ""
    if files.nccl is None:
        return "no NCCL is installed"
    if cell.scenario == "S7" and files.nccl.api < _OLDEST_COLLECTIVE_API:
        return f"the collectives drive NCCL from 2.20 on, and this is {files.nccl.nccl_version}"
    return ""


def batches(sides: Sequence[Side], cell: Cell) -> list[Sequence[Side]]:
    """The sides that are read at a time: each alone, or all interleaved."""
    return [sides] if cell.heading.interleaved else [[side] for side in sides]


def _of_pairs(side: Side, shared: Shared) -> Reading:
    assert isinstance(side.spec, RankSpec)
    both_ways = len({pair[0] for pair in shared.pairs}) == 1 and len(shared.ports) == 2
    return measure_shared(side.spec, shared, side.settings, both_ways)


def read(batch: Sequence[Side], hosts: Hosts | Shared) -> list[list[Reading]]:
    """For each side one reading for each cell of the block.

    Raises:
        RankFailed: a rank failed.
    """
    if isinstance(hosts, Shared):
        return [[_of_pairs(side, hosts)] for side in batch]
    parts = [(side.spec, side.settings) for side in batch if isinstance(side.spec, CollectiveSpec)]
    if parts:
        return measure_collective(parts, hosts)
    (side,) = batch
    assert isinstance(side.spec, RankSpec)
    return [[measure(side.spec, hosts, side.settings)]]
