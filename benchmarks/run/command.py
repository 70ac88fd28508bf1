# SPDX-License-Identifier: MIT
"""The command line of the track: from its words to plans, and from the readings to files."""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bagua_net import _sizes
from bagua_net._errors import BaguaNetError
from bagua_net._nccl import discovery
from bagua_net._nccl.socket_network import inspect
from benchmarks import ROOT, command_line
from benchmarks.networks import namespaces
from benchmarks.report import chart, difference, machine, markdown, results
from benchmarks.run import sides as contenders
from benchmarks.run.effort import FULL, QUICK
from benchmarks.run.scenarios import PATHS, SCENARIOS, TORCH
from benchmarks.run.track import Plan, Track, TrackError

#: --short: short windows and few settings.
_SHORT = replace(QUICK, pairs=FULL.pairs)
#: What a results file that is continued must have in common with this run.
_SAME = ("congestion_control", "nccl_version", "plugin_sha256", "baseline_sha256", "backend_sha256", "plugin_settings")


@dataclass(frozen=True)
class Program:
    """A command that runs the track."""

    name: str
    """Of the measurement."""
    summary: str | None
    """A line for --help."""
    scenarios: tuple[str, ...]
    suffix: str = ""
    """Of its results files."""


def _numbers(parse: Callable[[str], int]) -> Callable[[str], frozenset[int]]:
    def numbers(text: str) -> frozenset[int]:
        return frozenset(parse(word.strip()) for word in text.split(","))

    return numbers


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def _pairs(text: str) -> dict[str, int]:
    """Scenario → readings; "": of every other one."""
    words = [word.strip().rpartition("=") for word in text.split(",")]
    if any(int(number) < 1 for _, _, number in words):
        raise ValueError(text)
    return {name: int(number) for name, _, number in words}


def _arguments(program: Program, argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser(program.name, program.summary)
    parser.set_defaults(program=program, argv=argv)
    names = ",".join(program.scenarios)
    usual = ",".join(name for name in contenders.NAMES if name != "baseline")
    library = ROOT / "python/bagua_net/lib/libnccl-net-bagua.so"
    add = parser.add_argument
    add("--scenario", default=names, help=f"which of {names}")
    add("--sides", default=usual, help="which of %(default)s")
    add("--baseline", type=Path, metavar="LIBRARY", help="another build of the plugin, measured as one more side")
    add("--size", type=_numbers(_sizes.parse), default=frozenset(), help="only these message sizes: 64K,1M (all)")
    add("--connections", type=_numbers(int), default=frozenset(), help="only these numbers of connections (all)")
    add("--path", default=",".join(PATHS), help="only these kinds of network (%(default)s)")
    add("--rows", type=_pattern, default="", metavar="REGEX", help="only rows whose key in a results file has this")
    add(
        "--pairs",
        type=_pairs,
        default={},
        metavar="N[,NAME=N…]",
        help="readings per side and cell, of all scenarios or of one (2 to 5; 2 with --quick)",
    )
    add("--short", action="store_true", help="all cells with the windows of --quick")
    add("--few-settings", action="store_true", help="screen only as many settings of a side as --short does")
    add("--resume", action="store_true", help="continue the results file")
    add("--retry", action="store_true", help="with --resume: repeat the pairs with a failed or disturbed reading")
    add("--output", type=Path, help="results file (benchmarks/results/DATE.jsonl)")
    add("--report", type=Path, metavar="FILE", help="print the tables of a results file and exit")
    text = "say which ratios differ between two results files, and exit; status 1: the plugin became slower somewhere"
    add("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help=text)
    add("--congestion", default=machine.congestion_control(), help="TCP congestion control except in S4 (%(default)s)")
    text = "a variable for the plugin and its baseline; ours:NAME=VALUE: for the plugin alone"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    add("--build", type=Path, default=ROOT / "build-bench", help="the build folder of benchmarks/ (%(default)s)")
    add("--plugin", type=Path, default=library, help="the plugin (%(default)s)")
    add(
        "--nccl",
        type=Path,
        action="append",
        default=[],
        help="a libnccl.so.2 (that of an installed nvidia-nccl wheel); each further one gets its own results file",
    )
    add("--chart", type=Path, metavar="FILE", help="SVG or PNG of the ratios by size (beside the tables)")
    return command_line.parsed(parser, argv, "fewer cells, shorter windows: about nine minutes")


def _files(arguments: argparse.Namespace, names: tuple[str, ...], nccl: Path | None) -> contenders.Files:
    loops = arguments.build / "libtraffic.so"
    relay = arguments.build / "relay"
    if not (loops.is_file() and relay.is_file()):
        missing = relay if loops.is_file() else loops
        raise TrackError(f"{missing} is missing: cmake -S benchmarks -B build-bench && cmake --build build-bench")
    if "ours" in names and not arguments.plugin.is_file():
        raise TrackError(f"{arguments.plugin} is missing: cmake -B build && cmake --build build")
    baseline = arguments.baseline
    if baseline is not None and not baseline.is_file():
        raise TrackError(f"--baseline {baseline}: there is no such file")
    table = None if nccl is None else inspect(nccl.resolve())
    return contenders.Files(
        loops.resolve(),
        arguments.plugin.resolve(),
        table,
        relay.resolve(),
        None if baseline is None else baseline.resolve(),
    )


def _wanted(arguments: argparse.Namespace) -> tuple[frozenset[str], tuple[str, ...]]:
    """(scenarios, sides)"""
    scenarios = frozenset(_listed(arguments.scenario, arguments.program.scenarios, "--scenario"))
    names = set(_listed(arguments.sides, contenders.NAMES, "--sides"))
    if "baseline" in names and arguments.baseline is None:
        raise TrackError("--sides baseline: --baseline LIBRARY names the build to compare with")
    if arguments.baseline is not None:
        names.add("baseline")
    return scenarios, tuple(name for name in contenders.NAMES if name in names)


def _libraries(arguments: argparse.Namespace) -> Sequence[Path | None]:
    """The generations of NCCL to compare with; None where no side needs one."""
    wanted, names = _wanted(arguments)
    taking_part = {(scenario.name, name) for scenario in SCENARIOS for name in scenario.sides}
    if not any(contenders.needs_nccl(*part) for part in taking_part & set(itertools.product(wanted, names))):
        return [None]
    return list(arguments.nccl or discovery.libraries()[:1])


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
        return Path(tempfile.gettempdir()) / f"bagua-net-track-quick{suffix}.jsonl"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return ROOT / "benchmarks" / "results" / f"{today}{suffix}.jsonl"


def _plan(arguments: argparse.Namespace, nccl: Path | None) -> Plan:
    effort = QUICK if arguments.quick else _SHORT if arguments.short else FULL
    if arguments.few_settings:
        effort = effort.with_few_settings()
    unknown = arguments.pairs.keys() - effort.pairs.keys() - {""}
    if unknown:
        raise TrackError(f"--pairs: {', '.join(sorted(unknown))} is none of {', '.join(effort.pairs)}")
    every = arguments.pairs.get("")
    effort = replace(effort, pairs={name: arguments.pairs.get(name, every or n) for name, n in effort.pairs.items()})
    malformed = [item for item in arguments.set if "=" not in item]
    if malformed:
        raise TrackError(f"--set {malformed[0]}: NAME=VALUE is expected")
    scenarios, names = _wanted(arguments)
    plan = Plan(
        scenarios=scenarios,
        sides=names,
        effort=effort,
        quick=arguments.quick,
        settings=dict(item.split("=", 1) for item in arguments.set),
        congestion_control=arguments.congestion,
        files=_files(arguments, names, nccl),
        output=_output(arguments),
        sizes=arguments.size,
        connections=arguments.connections,
        paths=frozenset(_listed(arguments.path, PATHS, "--path")),
        rows=arguments.rows,
    )
    if not plan.cells():
        raise TrackError("no cell of these scenarios has these sizes, connections and networks")
    return plan


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    """One for each NCCL. gloo is read with the first only."""
    first, *others = [_plan(arguments, nccl) for nccl in _libraries(arguments)]
    plans = [first]
    for plan in others:
        assert plan.files.nccl is not None
        output = plan.output.with_stem(f"{plan.output.stem}-nccl-{plan.files.nccl.nccl_version}")
        plans.append(replace(plan, sides=tuple(name for name in plan.sides if name != "gloo"), output=output))
    return plans


def _copied(library: Path, directory: Path) -> Path:
    """A copy of the plugin with the header beside it, which declares its functions."""
    directory.mkdir()
    header = library.with_name("bagua_net.h")
    if header.is_file():
        shutil.copy(header, directory)
    return Path(shutil.copy(library, directory))


def _with_own_copies(plan: Plan, directory: Path) -> Plan:
    """The same plan with copies of the libraries and programs, so that a build meanwhile changes nothing."""
    files = plan.files
    loops = Path(shutil.copy(files.loops, directory))
    relay = Path(shutil.copy(files.relay, directory))
    plugin = _copied(files.plugin, directory / "ours") if files.plugin.is_file() else files.plugin
    baseline = _copied(files.baseline, directory / "baseline") if files.baseline else None
    return replace(plan, files=replace(files, loops=loops, plugin=plugin, relay=relay, baseline=baseline))


def _settings(plan: Plan) -> dict[str, Any]:
    files, baseline = plan.files, {}
    if files.baseline is not None:
        version, digest = machine.plugin_version(files.baseline), machine.digest(files.baseline)
        baseline = {"baseline_version": version, "baseline_sha256": digest}
    return {
        "congestion_control": plan.congestion_control,
        "nccl_version": "" if files.nccl is None else files.nccl.nccl_version,
        "torch_version": machine.torch_version() if "gloo" in plan.sides else "",
        "plugin_version": machine.plugin_version(files.plugin),
        "plugin_sha256": machine.digest(files.plugin),
        **baseline,
        "backend_sha256": machine.digest(*contenders.backend_sources()) if TORCH in plan.scenarios else "",
        "plugin_settings": dict(plan.settings),
        "sides": list(plan.sides),
        "pairs": {cell.scenario: plan.effort.pairs[cell.scenario] for cell in plan.cells()},
        "cells": len(plan.cells()),
        "effort": asdict(plan.effort),
    }


def _drop_disturbed_pairs(record: results.CellRecord) -> None:
    """A pair is repeated as a whole, so that all its sides share one seed and one moment."""
    bad = {run.pair for run in record.runs if run.pair >= 0 and (run.error or run.neighbours > markdown.QUIET)}
    record.runs = [run for run in record.runs if run.pair not in bad]


def _command(arguments: argparse.Namespace) -> str:
    """This command, as one that reads everything at once."""
    words = [word for word in arguments.argv if word not in ("--resume", "--retry")]
    return command_line.shown(arguments.program.name, words)


def _continue(stored: results.Results, settings: dict[str, Any], output: Path) -> None:
    """Gives the file the settings of this run."""
    for name in _SAME:
        before, now = stored.settings.get(name, ""), settings.get(name, "")
        if name == "nccl_version" and not (before and now):
            stored.settings[name] = before or now  # scenarios that need no NCCL name none
        elif before != now:
            raise TrackError(f"{output} was measured with another {name}: give another --output")
    for name in ("sides", "cells", "effort"):
        stored.settings[name] = settings[name]
    before = stored.settings["pairs"]
    stored.settings["pairs"] = {**(before if isinstance(before, dict) else {}), **settings["pairs"]}


def _stored(arguments: argparse.Namespace, plan: Plan) -> results.Results:
    """A new results file, or the one to continue."""
    if arguments.resume and plan.output.exists():
        stored = results.load(plan.output)
        _continue(stored, _settings(plan), plan.output)
        stored.command = _command(arguments)
        for record in stored.cells.values() if arguments.retry else ():
            _drop_disturbed_pairs(record)
        return stored
    if plan.output.exists() and not arguments.quick:
        raise TrackError(f"{plan.output} exists: --resume continues it, --output names another")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return results.Results(now, _command(arguments), _computer(plan.files.loops), _settings(plan))


def _computer(loops: Path) -> dict[str, Any]:
    try:
        return {**machine.describe(), "core_latency_ns": machine.core_latency_ns(loops)}
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
    print(markdown.render(stored))
    if arguments.chart:
        _draw(arguments.chart, stored)


def _compare(before: Path, after: Path) -> int:
    found = difference.changes(results.load(before), results.load(after))
    if not found:
        raise TrackError(f"{before} and {after} have no row in common that has the plugin and another side")
    for line in difference.lines(found):
        print(line)
    return int(any(change.verdict == "slower" for change in found))


def _measure(arguments: argparse.Namespace, plan: Plan) -> int:
    """Writes a results file, its tables and its picture; returns the number of failed readings."""
    stored = _stored(arguments, plan)
    stored.save(plan.output)
    with tempfile.TemporaryDirectory() as directory:
        track = Track(_with_own_copies(plan, Path(directory)), stored)
        track.run()
    stored = results.load(plan.output)
    tables = markdown.render(stored)
    plan.output.with_suffix(".md").write_text(tables)
    print(tables)
    if arguments.chart or chart.available():
        _draw(arguments.chart or plan.output.with_suffix(".svg"), stored)
    print(f"stored in {plan.output}", file=sys.stderr)
    return track.failed


def _run(program: Program, argv: Sequence[str]) -> int:
    arguments = _arguments(program, argv)
    if arguments.report:
        _show_earlier(arguments)
        return 0
    if arguments.compare:
        return _compare(*arguments.compare)
    if os.geteuid() != 0:
        raise TrackError(f"network namespaces need root: sudo python3 -m benchmarks {program.name} …")
    if arguments.chart and len(arguments.nccl) > 1:
        raise TrackError("--chart names one picture, but each --nccl gets its own: leave --chart out")
    namespaces.remove_stale()
    failed = [_measure(arguments, plan) for plan in _plans(arguments)]
    return 1 if any(failed) else 0


def run(program: Program, argv: Sequence[str]) -> int:
    """0: everything was read; 1: a rank failed somewhere; 2: the run could not continue."""
    try:
        return _run(program, argv)
    except (TrackError, results.ResultsUnusable, namespaces.NetworkSetupError, BaguaNetError) as error:
        print(f"{program.name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program.name}: interrupted; --resume continues", file=sys.stderr)
        return 130
