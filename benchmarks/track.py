#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the transport against NCCL's own on this machine. README.md beside this file tells how to run it."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import chart
import machine
import network
import report
import results
import sides as contenders
import wan
from processes import RankFailed
from report import QUIET
from scenarios import FULL, QUICK, SCENARIOS, TORCH, WORKS, Cell, Effort, cells

from bagua_net._errors import BaguaNetError
from bagua_net._nccl.socket_network import find, inspect

#: How far above the capacity of the flow classes a reading may lie: a window opens on full buffers.
_OVER_CAPACITY = 1.02


class TrackError(Exception):
    """The track cannot go on; the text says why and what to do."""


@dataclass(frozen=True)
class Program:
    """A command that runs the track."""

    name: str
    """Of its file, without ".py"."""
    summary: str
    """A line for --help."""
    scenarios: tuple[str, ...]
    suffix: str = ""
    """Of its results files."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    scenarios: frozenset[str]
    sides: tuple[str, ...]
    effort: Effort
    quick: bool
    settings: Mapping[str, str]
    congestion_control: str
    files: contenders.Files
    output: Path


class Track:
    """One run over the cells of a plan."""

    def __init__(self, plan: Plan, stored: results.Results) -> None:
        self._plan = plan
        self._results = stored
        self.failed = 0

    def run(self) -> None:
        """Measures every cell that is not complete yet.

        Raises:
            TrackError: a reading above what the flow classes let through.
        """
        wanted = [cell for cell in cells(self._plan.quick) if cell.scenario in self._plan.scenarios]
        for _, group in itertools.groupby(wanted, key=lambda cell: cell.block):
            block = list(group)
            names = [name for name in self._plan.sides if self._takes_part(block[0], name)]
            if names and not self._complete(block, names):
                with self._network(block[0]) as hosts:
                    self._measure_block(block, names, hosts)

    def _takes_part(self, cell: Cell, name: str) -> bool:
        if name not in cell.heading.sides:
            return False
        reason = contenders.obstacle(cell, name, self._plan.files)
        if reason:
            print(f"{cell.block}: without {name}: {reason}", file=sys.stderr, flush=True)
        return not reason

    @contextmanager
    def _network(self, cell: Cell) -> Iterator[network.Hosts]:
        congestion_control = self._plan.congestion_control
        if cell.path == "wan":
            with self._line(cell) as hosts:
                yield hosts
        elif cell.path == "cables":
            with network.cables(cell.cables_mbits, congestion_control) as hosts:
                yield hosts
        else:
            build = network.loopback if cell.path == "loopback" else network.veth
            with build(congestion_control) as hosts:
                if cell.classes_mbits:
                    network.shape(hosts, cell.classes_mbits)
                yield hosts

    @contextmanager
    def _line(self, cell: Cell) -> Iterator[network.Hosts]:
        line = wan.Line(cell.round_trip_ms, cell.loss_percent / 100)
        with wan.wan(self._plan.files.relay, line, cell.congestion) as there:
            yield there.hosts
        self._record(cell).lines.append(there.counts)
        self._results.save(self._plan.output)
        _check_line(cell, there.counts)

    def _record(self, cell: Cell) -> results.CellRecord:
        limit = network.capacity(cell.rates_mbits) if cell.rates_mbits else None
        return self._results.cells.setdefault(cell.key, results.CellRecord(cell, limit))

    def _missing(self, block: Sequence[Cell], name: str, pair: int) -> bool:
        """Is there anything left to read? Cells of a block are read together."""
        return not all(self._record(cell).has(name, pair) for cell in block)

    def _complete(self, block: Sequence[Cell], names: Sequence[str]) -> bool:
        pairs = range(self._plan.effort.pairs)
        return not any(self._missing(block, name, pair) for name in names for pair in pairs)

    def _measure_block(self, block: Sequence[Cell], names: Sequence[str], hosts: network.Hosts) -> None:
        chosen = [self._choose(block, name, hosts) for name in names]
        for pair in range(self._plan.effort.pairs):
            turn = pair % len(chosen)
            order = [side for side in chosen[turn:] + chosen[:turn] if self._missing(block, side.name, pair)]
            if order:
                seed = self._seed(block[0], hosts)
                for company in contenders.companies(order, block[0]):
                    self._read(block, company, hosts, pair, seed)

    def _seed(self, cell: Cell, hosts: network.Hosts) -> int:
        """A new mapping of flows to classes, the same for all sides of a pair."""
        if not cell.classes_mbits:
            return 0
        seed = secrets.randbelow(0xFFFFFFFF) + 1
        network.hash_flows(hosts, len(cell.classes_mbits), seed)
        return seed

    def _candidates(self, block: Sequence[Cell], name: str, effort: Effort) -> list[contenders.Side]:
        return contenders.candidates(block, name, effort, self._plan.files, self._plan.settings)

    def _choose(self, block: Sequence[Cell], name: str, hosts: network.Hosts) -> contenders.Side:
        """The one setting of this side, or the best of several by one short reading each."""
        effort, record = self._plan.effort, self._record(block[0])
        options = self._candidates(block, name, effort)
        if len(options) > 1 and name not in record.choices:
            seed = self._seed(record.cell, hosts)
            short = self._candidates(block, name, effort.halved())
            values = [self._read(block, [side], hosts, -1, seed)[side.name][0].value for side in short]
            record.choices[name] = _best(record.cell, short, values)
        choice = record.choices.get(name)
        return options[0] if choice is None else next(side for side in options if side.choice == choice)

    def _read(
        self, block: Sequence[Cell], company: Sequence[contenders.Side], hosts: network.Hosts, pair: int, seed: int
    ) -> dict[str, list[results.Run]]:
        """side → what was read of each cell."""
        read = {
            side.name: [results.Run(side.name, side.choice, pair, seed, None, []) for _ in block] for side in company
        }
        neighbours = machine.Neighbours()
        try:
            for runs, readings in zip(read.values(), contenders.read(company, hosts), strict=True):
                for run, reading in zip(runs, readings, strict=True):
                    run.value, run.per_rank, run.details = reading.value, reading.per_rank, reading.details
        except RankFailed as error:
            for run in itertools.chain(*read.values()):
                run.error = str(error)
            self.failed += 1
        share = neighbours.share()
        for runs in read.values():
            for cell, run in zip(block, runs, strict=True):
                run.neighbours = share
                self._record(cell).keep(run)
        self._results.save(self._plan.output)
        for runs in read.values():
            for cell, run in zip(block, runs, strict=True):
                _tell(self._record(cell), run)
                _check_limit(self._record(cell), run)
        return read


def _best(cell: Cell, options: list[contenders.Side], values: list[float | None]) -> str:
    better = min if WORKS[cell.work].less else max
    read = [(value, side.choice) for value, side in zip(values, options, strict=True) if value is not None]
    if not read:
        raise TrackError(f"{cell.key}: no setting of {options[0].name} could be measured")
    return better(read)[1]


def _tell(record: results.CellRecord, run: results.Run) -> None:
    """A line per reading, on stderr."""
    label = f"{run.side} {run.choice}".strip()
    turn = "choose" if run.pair < 0 else f"pair {run.pair + 1}"
    seed = f", seed {run.seed:#010x}" if run.seed else ""
    outcome = run.error if run.value is None else f"{run.value:.4g}"
    if run.neighbours > QUIET:
        outcome += f" (other processes took {run.neighbours:.0%} of the processors)"
    print(f"{record.cell.key}, {turn}, {label}{seed}: {outcome}", file=sys.stderr, flush=True)


def _check_limit(record: results.CellRecord, run: results.Run) -> None:
    if record.limit is None or run.value is None or record.cell.work != "stream":
        return
    if max(run.per_rank) > record.limit * _OVER_CAPACITY:
        raise TrackError(
            f"{record.cell.key}: {run.side} read {max(run.per_rank):.3f} GB/s where the flow classes let "
            f"{record.limit:.3f} through: the shaper does not work, nothing of this file can be used"
        )


def _check_line(cell: Cell, counts: dict[str, Any]) -> None:
    """A device that dropped packets added losses that nobody asked for."""
    print(f"{cell.key}: {json.dumps(counts)}", file=sys.stderr, flush=True)
    dropped = sum(direction["dropped"] for direction in counts["directions"])
    if dropped:
        raise TrackError(f"{cell.key}: {dropped} packets did not reach the relay: nothing of this cell can be used")


# ---- the command line ----


def _arguments(program: Program) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=program.summary)
    parser.set_defaults(program=program)
    names = ",".join(program.scenarios)
    library = contenders.ROOT / "python/bagua_net/lib/libnccl-net-bagua.so"
    add = parser.add_argument
    add("--scenario", default=names, help=f"which of {names}")
    add("--sides", default=",".join(contenders.NAMES), help="which of %(default)s")
    add("--pairs", type=int, help="readings per side and cell (5; 2 with --quick)")
    add("--quick", action="store_true", help="fewer cells, shorter windows: under five minutes")
    add("--short", action="store_true", help="all cells, windows as short as with --quick")
    add("--resume", action="store_true", help="continue the results file")
    add("--retry", action="store_true", help="with --resume: read again what failed or was disturbed")
    add("--output", type=Path, help="results file (benchmarks/results/DATE.json)")
    add("--report", type=Path, metavar="FILE", help="print the tables of a results file, and end")
    add("--congestion", default=machine.congestion_control(), help="TCP congestion control but in S4 (%(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the plugin")
    add(
        "--build",
        type=Path,
        default=contenders.ROOT / "build-bench",
        help="where CMake built this directory (%(default)s)",
    )
    add("--plugin", type=Path, default=library, help="the plugin (%(default)s)")
    add(
        "--nccl",
        type=Path,
        action="append",
        default=[],
        help="a libnccl.so.2 (that of an installed nvidia-nccl wheel); each further one gets a results file of its own",
    )
    add("--chart", type=Path, metavar="FILE", help="SVG or PNG of the ratios by size (beside the tables)")
    return parser.parse_args()


def _files(arguments: argparse.Namespace, names: tuple[str, ...], nccl: Path | None) -> contenders.Files:
    loops = arguments.build / "libp2p.so"
    relay = arguments.build / "relay"
    if not (loops.is_file() and relay.is_file()):
        missing = relay if loops.is_file() else loops
        raise TrackError(f"{missing} is missing: cmake -S benchmarks -B build-bench && cmake --build build-bench")
    if "ours" in names and not arguments.plugin.is_file():
        raise TrackError(f"{arguments.plugin} is missing: cmake -B build && cmake --build build")
    table = None if nccl is None else inspect(nccl)
    return contenders.Files(loops.resolve(), arguments.plugin.resolve(), table, relay.resolve())


def _wanted(arguments: argparse.Namespace) -> tuple[frozenset[str], tuple[str, ...]]:
    """(scenarios, sides)"""
    scenarios = frozenset(_listed(arguments.scenario, arguments.program.scenarios, "--scenario"))
    return scenarios, _listed(arguments.sides, contenders.NAMES, "--sides")


def _libraries(arguments: argparse.Namespace) -> Sequence[Path | None]:
    """The generations of NCCL to compare with; None where nothing is compared with any."""
    wanted, names = _wanted(arguments)
    taking_part = {name for scenario in SCENARIOS if scenario.name in wanted for name in scenario.sides}
    if not contenders.NEED_NCCL & taking_part & set(names):
        return [None]
    libraries = arguments.nccl or find()[:1]
    if not libraries:
        raise TrackError("no NCCL to compare with: pip install --no-deps nvidia-nccl-cu12, or give --nccl FILE")
    return list(libraries)


def _listed(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise TrackError(f"{what}: {', '.join(unknown) or 'nothing'} is none of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _output(arguments: argparse.Namespace) -> Path:
    if arguments.output:
        return Path(arguments.output)
    suffix = arguments.program.suffix
    if arguments.quick:
        return Path(tempfile.gettempdir()) / f"bagua-net-track-quick{suffix}.json"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return contenders.ROOT / "benchmarks" / "results" / f"{today}{suffix}.json"


def _plan(arguments: argparse.Namespace, nccl: Path | None) -> Plan:
    effort = QUICK if arguments.quick else replace(QUICK, pairs=FULL.pairs) if arguments.short else FULL
    if arguments.pairs:
        effort = replace(effort, pairs=arguments.pairs)
    malformed = [item for item in arguments.set if "=" not in item]
    if malformed:
        raise TrackError(f"--set {malformed[0]}: NAME=VALUE is expected")
    scenarios, names = _wanted(arguments)
    return Plan(
        scenarios=scenarios,
        sides=names,
        effort=effort,
        quick=arguments.quick,
        settings=dict(item.split("=", 1) for item in arguments.set),
        congestion_control=arguments.congestion,
        files=_files(arguments, names, nccl),
        output=_output(arguments),
    )


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    """One for each NCCL. What has nothing to do with NCCL is read with the first one only."""
    first, *others = [_plan(arguments, nccl) for nccl in _libraries(arguments)]
    plans = [first]
    for plan in others:
        assert plan.files.nccl is not None
        output = plan.output.with_stem(f"{plan.output.stem}-nccl-{plan.files.nccl.nccl_version}")
        plans.append(replace(plan, sides=tuple(name for name in plan.sides if name != "gloo"), output=output))
    return plans


def _with_own_copies(plan: Plan, directory: Path) -> Plan:
    """The same with copies of what was built here, so that a build meanwhile cannot change what is measured."""
    files = plan.files
    loops = Path(shutil.copy(files.loops, directory))
    relay = Path(shutil.copy(files.relay, directory))
    plugin = Path(shutil.copy(files.plugin, directory)) if files.plugin.is_file() else files.plugin
    header = files.plugin.with_name("bagua_net.h")
    if header.is_file():
        shutil.copy(header, directory)
    return replace(plan, files=replace(files, loops=loops, plugin=plugin, relay=relay))


def _settings(plan: Plan) -> dict[str, object]:
    return {
        "congestion_control": plan.congestion_control,
        "nccl_version": "" if plan.files.nccl is None else plan.files.nccl.nccl_version,
        "torch_version": machine.torch_version() if "gloo" in plan.sides else "",
        "plugin_version": machine.plugin_version(plan.files.plugin),
        "plugin_sha256": machine.digest(plan.files.plugin),
        "backend_sha256": machine.digest(*contenders.backend_sources()) if TORCH in plan.scenarios else "",
        "plugin_settings": dict(plan.settings),
        "pairs": plan.effort.pairs,
        "effort": asdict(plan.effort),
    }


def _stored(arguments: argparse.Namespace, plan: Plan) -> results.Results:
    """A new results file, or the one to continue."""
    if arguments.resume and plan.output.exists():
        stored = results.load(plan.output)
        stored.settings["pairs"] = plan.effort.pairs
        settings = _settings(plan)
        for name in ("congestion_control", "nccl_version", "plugin_sha256", "backend_sha256", "plugin_settings"):
            if stored.settings.get(name, "") != settings[name]:
                raise TrackError(f"{plan.output} was measured with another {name}: give another --output")
        for record in stored.cells.values() if arguments.retry else ():
            record.runs = [run for run in record.runs if not run.error and (run.pair < 0 or run.neighbours <= QUIET)]
        return stored
    if plan.output.exists() and not arguments.quick:
        raise TrackError(f"{plan.output} exists: --resume continues it, --output names another")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    # Where files lie on this machine is nobody's business: their names say enough.
    shown = [Path(word).name if word.startswith(("/", "~")) else word for word in sys.argv[1:]]
    command = shlex.join([f"benchmarks/{arguments.program.name}.py", *shown])
    return results.Results(now, command, _computer(plan.files.loops), _settings(plan))


def _computer(loops: Path) -> dict[str, Any]:
    try:
        return {**machine.describe(), "processors_apart_ns": machine.processors_apart_ns(loops)}
    except AttributeError:
        raise TrackError(f"{loops.name} is of an older build: cmake --build build-bench") from None


def _draw(path: Path, stored: results.Results) -> None:
    if not chart.available():
        raise TrackError("--chart needs matplotlib: pip install matplotlib")
    try:
        chart.write(path, stored)
    except ValueError as error:
        raise TrackError(f"--chart {path}: {error}") from error


def _show_earlier(arguments: argparse.Namespace) -> None:
    stored = results.load(arguments.report)
    print(report.render(stored))
    if arguments.chart:
        _draw(arguments.chart, stored)


def _measure(arguments: argparse.Namespace, plan: Plan) -> int:
    """A results file, its tables and its picture; how many readings failed."""
    stored = _stored(arguments, plan)
    with tempfile.TemporaryDirectory() as directory:
        track = Track(_with_own_copies(plan, Path(directory)), stored)
        track.run()
    plan.output.with_suffix(".md").write_text(report.render(stored))
    print(report.render(stored))
    if arguments.chart or chart.available():
        _draw(arguments.chart or plan.output.with_suffix(".svg"), stored)
    print(f"stored in {plan.output}", file=sys.stderr)
    return track.failed


def _main(program: Program) -> int:
    arguments = _arguments(program)
    if arguments.report:
        _show_earlier(arguments)
        return 0
    if os.geteuid() != 0:
        raise TrackError(f"network namespaces need root: sudo python3 benchmarks/{program.name}.py …")
    if arguments.chart and len(arguments.nccl) > 1:
        raise TrackError("--chart names one picture, and each --nccl has its own: it lies beside its tables")
    network.remove_stale()
    failed = [_measure(arguments, plan) for plan in _plans(arguments)]
    return 1 if any(failed) else 0


def main(program: Program) -> int:
    """0: everything was read; 1: a rank failed somewhere; 2: the track could not go on."""
    try:
        return _main(program)
    except (TrackError, results.ResultsUnusable, network.NetworkSetupError, BaguaNetError) as error:
        print(f"{program.name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program.name}: interrupted; --resume continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    names = tuple(scenario.name for scenario in SCENARIOS if scenario.name != TORCH)
    sys.exit(main(Program("track", (__doc__ or "").splitlines()[0], names)))
