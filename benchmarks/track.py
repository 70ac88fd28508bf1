#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the transport against NCCL's own on this machine. README.md beside this file tells how to run it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import machine
import network
import report
import results
import sides as contenders
import wan
from pair import RankFailed, measure
from report import QUIET
from scenarios import FULL, QUICK, SCENARIOS, Cell, Effort, cells

from bagua_net._errors import BaguaNetError
from bagua_net._nccl_wheel import find, inspect

#: How far above the capacity of the flow classes a reading may lie: a window opens on full buffers.
_OVER_CAPACITY = 1.02


class TrackError(Exception):
    """The track cannot go on; the text says why and what to do."""


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
        for cell in cells(self._plan.quick):
            if cell.scenario in self._plan.scenarios:
                with self._network(cell) as hosts:
                    self._measure_cell(cell, hosts)

    @contextmanager
    def _network(self, cell: Cell) -> Iterator[network.Hosts]:
        if cell.path == "wan":
            with self._line(cell) as hosts:
                yield hosts
            return
        build = network.loopback if cell.path == "loopback" else network.veth
        with build(self._plan.congestion_control) as hosts:
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
        limit = network.capacity(cell.classes_mbits) if cell.classes_mbits else None
        return self._results.cells.setdefault(cell.key, results.CellRecord(cell, limit))

    def _measure_cell(self, cell: Cell, hosts: network.Hosts) -> None:
        record = self._record(cell)
        chosen = [self._choose(record, name, hosts) for name in self._plan.sides]
        for pair in range(self._plan.effort.pairs):
            turn = pair % len(chosen)
            order = [side for side in chosen[turn:] + chosen[:turn] if not record.has(side.name, pair)]
            if order:
                seed = self._seed(cell, hosts)
                for side in order:
                    self._read(record, side, hosts, pair, seed)

    def _seed(self, cell: Cell, hosts: network.Hosts) -> int:
        """A new mapping of flows to classes, the same for all sides of a pair."""
        if not cell.classes_mbits:
            return 0
        seed = secrets.randbelow(0xFFFFFFFF) + 1
        network.hash_flows(hosts, len(cell.classes_mbits), seed)
        return seed

    def _choose(self, record: results.CellRecord, name: str, hosts: network.Hosts) -> contenders.Side:
        """The one setting of this side, or the best of several by one short reading each."""
        plan, cell = self._plan, record.cell
        options = contenders.candidates(cell, plan.effort, plan.files, plan.settings)[name]
        if len(options) > 1 and name not in record.choices:
            seed = self._seed(cell, hosts)
            short = contenders.candidates(cell, plan.effort.halved(), plan.files, plan.settings)[name]
            values = [self._read(record, side, hosts, -1, seed) for side in short]
            record.choices[name] = _best(cell, short, values)
        choice = record.choices.get(name)
        return options[0] if choice is None else next(side for side in options if side.choice == choice)

    def _read(
        self, record: results.CellRecord, side: contenders.Side, hosts: network.Hosts, pair: int, seed: int
    ) -> float | None:
        run = results.Run(side.name, side.choice, pair, seed, None, [])
        neighbours = machine.Neighbours()
        try:
            reading = measure(side.spec, hosts, side.settings)
            run.value, run.per_rank = reading.value, reading.per_rank
        except RankFailed as error:
            run.error = str(error)
            self.failed += 1
        run.neighbours = neighbours.share()
        record.runs.append(run)
        self._results.save(self._plan.output)
        _tell(record, run)
        _check_limit(record, run)
        return run.value


def _best(cell: Cell, options: list[contenders.Side], values: list[float | None]) -> str:
    better = min if cell.work == "pingpong" else max
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
    if record.limit is None or run.value is None:
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ",".join(scenario.name for scenario in SCENARIOS)
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
    add("--nccl", type=Path, help="a libnccl.so.2 (that of an installed nvidia-nccl wheel)")
    return parser.parse_args()


def _files(arguments: argparse.Namespace, names: tuple[str, ...]) -> contenders.Files:
    loops = arguments.build / "libp2p.so"
    relay = arguments.build / "relay"
    if not (loops.is_file() and relay.is_file()):
        missing = relay if loops.is_file() else loops
        raise TrackError(f"{missing} is missing: cmake -S benchmarks -B build-bench && cmake --build build-bench")
    if "ours" in names and not arguments.plugin.is_file():
        raise TrackError(f"{arguments.plugin} is missing: cmake -B build && cmake --build build")
    libraries = [arguments.nccl] if arguments.nccl else find()
    if not libraries:
        raise TrackError("no NCCL to compare with: pip install --no-deps nvidia-nccl-cu12, or give --nccl FILE")
    return contenders.Files(loops.resolve(), arguments.plugin.resolve(), inspect(libraries[0]), relay.resolve())


def _listed(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise TrackError(f"{what}: {', '.join(unknown) or 'nothing'} is none of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _output(arguments: argparse.Namespace) -> Path:
    if arguments.output:
        return Path(arguments.output)
    if arguments.quick:
        return Path(tempfile.gettempdir()) / "bagua-net-track-quick.json"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return contenders.ROOT / "benchmarks" / "results" / f"{today}.json"


def _plan(arguments: argparse.Namespace) -> Plan:
    effort = QUICK if arguments.quick else replace(QUICK, pairs=FULL.pairs) if arguments.short else FULL
    if arguments.pairs:
        effort = replace(effort, pairs=arguments.pairs)
    malformed = [item for item in arguments.set if "=" not in item]
    if malformed:
        raise TrackError(f"--set {malformed[0]}: NAME=VALUE is expected")
    names = _listed(arguments.sides, contenders.NAMES, "--sides")
    known = tuple(scenario.name for scenario in SCENARIOS)
    return Plan(
        scenarios=frozenset(_listed(arguments.scenario, known, "--scenario")),
        sides=names,
        effort=effort,
        quick=arguments.quick,
        settings=dict(item.split("=", 1) for item in arguments.set),
        congestion_control=arguments.congestion,
        files=_files(arguments, names),
        output=_output(arguments),
    )


def _with_own_copies(plan: Plan, directory: Path) -> Plan:
    """The same with copies of what was built here, so that a build meanwhile cannot change what is measured."""
    files = plan.files
    loops = Path(shutil.copy(files.loops, directory))
    relay = Path(shutil.copy(files.relay, directory))
    plugin = Path(shutil.copy(files.plugin, directory)) if files.plugin.is_file() else files.plugin
    return replace(plan, files=replace(files, loops=loops, plugin=plugin, relay=relay))


def _settings(plan: Plan) -> dict[str, object]:
    return {
        "congestion_control": plan.congestion_control,
        "nccl_version": plan.files.nccl.nccl_version,
        "plugin_version": machine.plugin_version(plan.files.plugin),
        "plugin_sha256": machine.digest(plan.files.plugin),
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
        for name in ("congestion_control", "nccl_version", "plugin_sha256", "plugin_settings"):
            if stored.settings[name] != settings[name]:
                raise TrackError(f"{plan.output} was measured with another {name}: give another --output")
        for record in stored.cells.values() if arguments.retry else ():
            record.runs = [run for run in record.runs if not run.error and (run.pair < 0 or run.neighbours <= QUIET)]
        return stored
    if plan.output.exists() and not arguments.quick:
        raise TrackError(f"{plan.output} exists: --resume continues it, --output names another")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    # Where files lie on this machine is nobody's business: their names say enough.
    shown = [Path(word).name if word.startswith(("/", "~")) else word for word in sys.argv[1:]]
    command = shlex.join(["benchmarks/track.py", *shown])
    return results.Results(now, command, dict(machine.describe()), _settings(plan))


def _show(stored: results.Results) -> None:
    print(report.render(stored))


def _main() -> int:
    arguments = _arguments()
    if arguments.report:
        _show(results.load(arguments.report))
        return 0
    if os.geteuid() != 0:
        raise TrackError("network namespaces need root: sudo python3 benchmarks/track.py …")
    plan = _plan(arguments)
    stored = _stored(arguments, plan)
    network.remove_stale()
    with tempfile.TemporaryDirectory() as directory:
        track = Track(_with_own_copies(plan, Path(directory)), stored)
        track.run()
    plan.output.with_suffix(".md").write_text(report.render(stored))
    _show(stored)
    print(f"stored in {plan.output}", file=sys.stderr)
    return 1 if track.failed else 0


def main() -> int:
    """0: everything was read; 1: a rank failed somewhere; 2: the track could not go on."""
    try:
        return _main()
    except (TrackError, results.ResultsUnusable, network.NetworkSetupError, BaguaNetError) as error:
        print(f"track: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("track: interrupted; --resume continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
