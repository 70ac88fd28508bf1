# SPDX-License-Identifier: MIT
"""The command: places, processes, the file of readings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.collectives import report
from benchmarks.collectives.rank import Spec
from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import Placement, RankFailed, place, running
from benchmarks.networks import namespaces
from benchmarks.report import about, jsonl, machine

_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_PORT = 29511
#: Ranks that train: eight would need the memory of sixteen models.
_TRAINED = (2, 4)
#: Longer than any reading.
_ANSWER_S = 600.0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("torch-collectives", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="readings of each row: %(default)s")
    parser.add_argument("--hosts", default="1,2", help="%(default)s")
    parser.add_argument("--ranks", default="2,4,8", help="%(default)s")
    parser.add_argument("--sizes", default=",".join(map(str, _SIZES)), help="bytes: %(default)s")
    parser.add_argument("--parts", default="calls,busy,waits,training", help="%(default)s; training: of 2 and 4 ranks")
    parser.add_argument("--calls", default="", help="only those whose name contains one of these, separated by commas")
    parser.add_argument("--output", type=Path, help="the file of readings: results/torch-collectives/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(
        parser,
        argv,
        "two pairs of three sizes, calls only: ten minutes",
        pairs=2,
        sizes="1024,1048576,67108864",
        parts="calls",
        ranks="2,4",
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _network(hosts: int) -> AbstractContextManager[namespaces.Hosts]:
    congestion = machine.congestion_control()
    return namespaces.loopback(congestion) if hosts == 1 else namespaces.veth(congestion)


def _read(hosts: int, ranks: int, arguments: argparse.Namespace, keep: Any) -> None:
    parts = [part for part in arguments.parts.split(",") if part != "training" or ranks in _TRAINED]
    with _network(hosts) as ends:
        places = place(ends, ranks)
        placements = [Placement(rank, host, {"OMP_NUM_THREADS": "1"}) for rank, host in enumerate(places)]
        with running("benchmarks.collectives.rank", placements) as processes:
            for rank, process in enumerate(processes):
                sizes = _numbers(arguments.sizes)
                spec = Spec(
                    rank,
                    ranks,
                    places[0].address,
                    _PORT,
                    arguments.pairs,
                    sizes,
                    tuple(parts),
                    tuple(arguments.calls.split(",")),
                )
                process.send(encode(spec))
            while (line := processes[0].receive(_ANSWER_S)).get("event") != "end":
                keep({"hosts": hosts, "ranks": ranks, **line})


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*jsonl.load(arguments.report)), end="")
        return 0
    output = command_line.output(arguments, "torch-collectives/DATE.jsonl")
    namespaces.remove_stale()
    head, readings = about.this_run("torch-collectives", argv, pairs=arguments.pairs), []

    def keep(reading: dict[str, Any]) -> None:
        readings.append(report.rounded(reading))
        output.write_text(jsonl.text(head, readings))
        ratio = report.ratio(reading)
        factor = "" if ratio is None else f"{ratio:.2f} × gloo"
        where = f"{reading['ranks']} ranks, {reading['hosts']} hosts"
        print(f"{where}: {reading['name']}, {reading['bytes']} bytes: {factor}", file=sys.stderr)

    try:
        for hosts in _numbers(arguments.hosts):
            for ranks in _numbers(arguments.ranks):
                _read(hosts, ranks, arguments, keep)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"torch-collectives: {error}", file=sys.stderr)
        return 1
    output.with_suffix(".md").write_text(report.render(head, readings))
    return 0
