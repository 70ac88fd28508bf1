# SPDX-License-Identifier: MIT
"""The command: every row of tests/algorithms/convergence.py on both tasks, over a network between two hosts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import command_line
from benchmarks.curves import report
from benchmarks.curves.rank import Spec
from benchmarks.curves.sides import TASKS, exact_of, rows, sides
from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import Placement, RankFailed, place, running
from benchmarks.networks import namespaces
from benchmarks.report import about, machine
from benchmarks.report.jsonl import Reading

_PORT = 29513
_RANKS = 2
#: From one copy of the weights to the next. With DiLoCo's row all ranks have equal weights then.
_EVERY = 10
#: Longer than any training.
_ANSWER_S = 3600.0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("time-to-accuracy", __doc__)
    parser.add_argument("--tasks", default="digits,characters", help="%(default)s")
    parser.add_argument("--mbits", default="20,200", help="of the network, in Mbit/s: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="%(default)s")
    parser.add_argument("--steps", type=int, default=300, help="of each training, a multiple of 10: %(default)s")
    parser.add_argument("--rows", default="", help="only those whose name contains this")
    parser.add_argument("--output", type=Path, help="the file of readings: results/curves/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(parser, argv, "one seed on the slower network: six minutes", seeds=1, mbits="20")


def _check(arguments: argparse.Namespace) -> None:
    """Raises ValueError: something is asked for that there is not."""
    for task in arguments.tasks.split(","):
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
        if not sides(task, arguments.rows):
            raise ValueError(f"no row's name contains {arguments.rows!r}; there are {'; '.join(rows(task))}")
    if not all(each.isdecimal() and int(each) > 0 for each in arguments.mbits.split(",")):
        raise ValueError(f"--mbits {arguments.mbits} is not possible; give whole numbers, separated by commas")
    if arguments.steps < _EVERY or arguments.steps % _EVERY:
        raise ValueError(f"--steps {arguments.steps} is not possible; give a multiple of {_EVERY}")


def _read(arguments: argparse.Namespace, task: str, mbits: int) -> Iterator[Reading]:
    with namespaces.veth(machine.congestion_control()) as hosts:
        namespaces.shape(hosts, (mbits,))
        namespaces.hash_flows(hosts, 1, 0)
        places = place(hosts, _RANKS)
        placements = [Placement(rank, host, {"OMP_NUM_THREADS": "1"}) for rank, host in enumerate(places)]
        with running("benchmarks.curves.rank", placements) as processes:
            for rank, process in enumerate(processes):
                names = tuple(sides(task, arguments.rows))
                address, seeds = places[0].address, arguments.seeds
                spec = Spec(rank, _RANKS, address, _PORT, task, seeds, arguments.steps, _EVERY, names)
                process.send(encode(spec))
            while (line := processes[0].receive(_ANSWER_S)).get("event") != "end":
                against = exact_of(rows(task)[line["side"].split(" ", 1)[1]], task)
                yield {"task": task, "network": f"{mbits} Mbit/s", "against": against, **line}


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*report.load(arguments.report)), end="")
        return 0
    try:
        _check(arguments)
    except ValueError as error:
        print(f"time-to-accuracy: {error}", file=sys.stderr)
        return 2
    output = command_line.output(arguments, "curves/DATE.jsonl")
    settings = {"ranks": _RANKS, "seeds": arguments.seeds, "steps": arguments.steps, "every": _EVERY}
    head = about.this_run("time-to-accuracy", argv, **settings)
    readings: list[Reading] = []
    namespaces.remove_stale()
    try:
        for task in arguments.tasks.split(","):
            for mbits in map(int, arguments.mbits.split(",")):
                for reading in _read(arguments, task, mbits):
                    readings.append(report.rounded(reading))
                    output.write_text(report.lines(head, readings))
                    print(report.line(reading), file=sys.stderr)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"time-to-accuracy: {error}", file=sys.stderr)
        return 1
    output.with_suffix(".md").write_text(report.render(head, readings))
    return 0
