# SPDX-License-Identifier: MIT
"""The command: every row of tests/algorithms/convergence.py, on both tasks, over both backends, in paired seeds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import command_line
from benchmarks.accuracy import report
from benchmarks.report import about, jsonl
from tests.algorithms.convergence import BACKENDS, RANKS, ROWS, Row, Run, trained
from tests.algorithms.tasks import TASKS
from tests.support.ranks import Ranks

_STEPS = {"digits": 300, "characters": 300}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("convergence", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="pairs of runs: %(default)s")
    parser.add_argument("--tasks", default=",".join(_STEPS), help="%(default)s")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="%(default)s")
    parser.add_argument("--rows", default="", help="only those whose label contains one of these, separated by commas")
    parser.add_argument("--steps", type=int, help=f"instead of {_STEPS}")
    parser.add_argument("--output", type=Path, help="the file of readings: results/convergence/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(parser, argv, "one seed, and a third of the steps: ten minutes", seeds=1, steps=100)


def _with_exact(rows: Sequence[Row], task: str) -> Iterator[Row]:
    """Exact averages come before the first row that is compared with them; each with the optimizer that it gets."""
    done: set[str] = set()
    for row in rows:
        exact = row.exact()
        if (optimizer := exact.optimizer or TASKS[task].optimizer) not in done:
            done.add(optimizer)
            yield exact
        yield row


def _reading(ranks: Ranks, row: Row, task: str, backend: str, seeds: int, steps: int) -> report.Reading:
    runs = [asdict(trained(ranks, row, Run(task, backend, seed, steps))) for seed in range(seeds)]
    return {
        "task": task,
        "backend": backend,
        "row": row.label,
        "optimizer": row.optimizer or TASKS[task].optimizer,
        "against": row.exact().optimizer or TASKS[task].optimizer,
        "points": row.points,
        "equal": row.equal,
        "runs": runs,
    }


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*jsonl.load(arguments.report)), end="")
        return 0
    output = command_line.output(arguments, "convergence/DATE.jsonl")
    head = about.this_run(
        "convergence",
        argv,
        ranks=RANKS,
        seeds=arguments.seeds,
        steps={task: arguments.steps or _STEPS[task] for task in arguments.tasks.split(",")},
    )
    readings: list[report.Reading] = []
    rows = [row for row in ROWS if any(part in row.label for part in arguments.rows.split(","))]
    # Ranks of one host share memory, and bagua_net sends no codes there: each has a host of its own.
    with Ranks(RANKS, hosts=RANKS) as ranks:
        for task, steps in head["settings"]["steps"].items():
            for backend in arguments.backends.split(","):
                for row in _with_exact(rows, task):
                    reading = report.rounded(_reading(ranks, row, task, backend, arguments.seeds, steps))
                    readings.append(reading)
                    output.write_text(jsonl.text(head, readings))
                    print(f"{task}, {backend}: {report.line(reading, readings)}", file=sys.stderr)
    output.with_suffix(".md").write_text(report.render(head, readings))
    return 0
