# SPDX-License-Identifier: MIT
"""The command: networks, processes, the file of readings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT, command_line
from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import Placement, RankFailed, place, running
from benchmarks.networks import namespaces
from benchmarks.report import about
from benchmarks.steps import report
from benchmarks.steps.cells import QUICK, QUICK_SIDES, Cell, every
from benchmarks.steps.models import SHAPES
from benchmarks.steps.networks import LONG_LINE, Network, networks
from benchmarks.steps.rank import Spec
from benchmarks.steps.sides import TRIAL, WAYS

_PORT = 29512
#: Without --quick. "small" is for the tests.
_MODELS, _RANKS, _PAIRS = ["VGG16", "BERT-large"], [2, 4], 3
#: Longer than any reading: 100 steps of the larger model at 100 Mbit/s.
_ANSWER_S = 20_000.0
#: PowerSGD's callbacks start collectives, whose order differs between the ranks over gloo: it ends with an abort.
_SIDES = [
    f"{backend} {way}" for way in WAYS for backend in ("gloo", "bagua_net") if (backend, way) != ("gloo", "PowerSGD")
]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("algorithms", __doc__)
    parser.set_defaults(argv=argv)
    parser.add_argument("--pairs", type=int, help=f"readings of each side: {_PAIRS}; with --quick by cell")
    parser.add_argument("--steps", type=int, default=0, help="of one reading: 2, 1 where a step takes long")
    parser.add_argument("--trial", type=int, default=TRIAL, help="steps of auto with each candidate: %(default)s")
    parser.add_argument("--models", default="", help=f"of {', '.join(SHAPES)}: {','.join(_MODELS)}")
    parser.add_argument("--networks", default="", help="names, separated by semicolons: all")
    parser.add_argument("--ranks", default="", help=f"on two hosts: {','.join(map(str, _RANKS))}")
    parser.add_argument("--sides", default="", help="such as 'gloo plain;bagua_net ByteGrad 8': all")
    parser.add_argument("--backward", type=float, default=0.3, help="seconds that backward takes: %(default)s")
    parser.add_argument("--build", type=Path, default=ROOT / "build-bench", help="the track's programs: %(default)s")
    parser.add_argument("--output", type=Path, help="the file of readings: results/algorithms/DATE.jsonl")
    parser.add_argument("--resume", action="store_true", help="continue the file: read the pairs that it lacks")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(parser, argv, "nine cells, the sides that differ most, one or two pairs")


def _chosen(text: str, of: Sequence[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(";") if name.strip()] or list(of)
    for name in names:
        if name not in of:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(of)}")
    return names


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.replace(",", ";").split(";") if name.strip()]


def _ranks(text: str) -> list[int]:
    for each in _split(text):
        if not each.isdecimal() or int(each) < 2 or int(each) % 2:
            raise ValueError(f"--ranks {each} is not possible: an even number is, half of them on each host")
    return [int(each) for each in _split(text)] or _RANKS


def _cells(arguments: argparse.Namespace, known: dict[str, Network]) -> list[Cell]:
    """Raises ValueError: there is no such model, network, or number of ranks, or a program is missing."""
    models = _chosen(";".join(_split(arguments.models) or _MODELS), list(SHAPES), "model")
    wanted, ranks = _chosen(arguments.networks, list(known), "network"), _ranks(arguments.ranks)
    cells = every(models, wanted, ranks, arguments.pairs or _PAIRS)
    if arguments.quick:
        here = [each for each in QUICK if each.model in models and each.network in wanted and each.ranks in ranks]
        cells = [replace(each, pairs=arguments.pairs or each.pairs) for each in here]
    if not cells:
        raise ValueError("--quick has no such cell; leave out --quick, or name others")
    if any(each.network == LONG_LINE for each in cells) and not _relay(arguments).exists():
        raise ValueError(
            f"{_relay(arguments)} is missing: cmake -S benchmarks -B build-bench; cmake --build build-bench"
        )
    return cells


def _relay(arguments: argparse.Namespace) -> Path:
    return Path(arguments.build / "relay")


class _File:
    """The file of readings. It is whole after each of them."""

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        """Raises ValueError: there is one that shall not be continued, or that is of another backward pass."""
        self._path = path
        self._heads: list[dict[str, Any]] = []
        self._readings: list[report.Reading] = []
        if path.exists():
            if not arguments.resume:
                raise ValueError(f"{path} exists: --resume continues it, --output names another")
            self._heads, self._readings = report.load(path)
            self._same_backward(arguments.backward)
        self._heads.append(about.this_run("algorithms", arguments.argv, backward_s=arguments.backward))

    def _same_backward(self, seconds: float) -> None:
        for head in self._heads:
            if head["settings"]["backward_s"] != seconds:
                raise ValueError(
                    f"{self._path} has steps whose backward takes {head['settings']['backward_s']} s, not {seconds}; "
                    "--output names another file"
                )

    def lacks(self, cell: Cell, sides: Sequence[str]) -> tuple[int, ...]:
        """Pairs that have not read all of the sides."""
        read = {(each["pair"], each["side"]) for each in self._readings if report.cell_of(each) == cell.names()}
        return tuple(pair for pair in range(cell.pairs) if any((pair, side) not in read for side in sides))

    def drop(self, cell: Cell, pairs: Sequence[int]) -> None:
        """These are read anew, with all sides in one alternation."""
        self._readings = [
            each for each in self._readings if report.cell_of(each) != cell.names() or each["pair"] not in pairs
        ]

    def keep(self, cell: Cell, reading: report.Reading) -> None:
        place = {"model": cell.model, "network": cell.network, "ranks": cell.ranks}
        self._readings.append({**place, **report.rounded(reading)})
        report.save(self._path, self._heads, self._readings)
        print(f"{', '.join(map(str, cell.names()))}: {report.line(reading)}", file=sys.stderr)

    def close(self) -> None:
        """Writes the tables."""
        if self._path.exists():
            self._path.with_suffix(".md").write_text(report.render(*report.load(self._path)))


def _read(network: Network, cell: Cell, pairs: tuple[int, ...], sides: list[str], how: Any, file: _File) -> None:
    with network() as ends:
        places = place(ends, cell.ranks)
        placements = [Placement(rank, host, {"OMP_NUM_THREADS": "1"}) for rank, host in enumerate(places)]
        with running("benchmarks.steps.rank", placements) as processes:
            for rank, process in enumerate(processes):
                spec = Spec(
                    rank,
                    cell.ranks,
                    places[0].address,
                    _PORT,
                    places[0].interface,
                    pairs,
                    how.steps,
                    how.trial,
                    cell.model,
                    how.backward,
                    tuple(sides),
                )
                process.send(encode(spec))
            while (line := processes[0].receive(_ANSWER_S)).get("event") != "end":
                file.keep(cell, line)


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*report.load(arguments.report)), end="")
        return 0
    output = command_line.output(arguments, "algorithms/DATE.jsonl")
    known = networks(_relay(arguments))
    try:
        sides = _chosen(arguments.sides or ";".join(QUICK_SIDES if arguments.quick else ()), _SIDES, "side")
        cells = _cells(arguments, known)
        file = _File(output, arguments)
    except ValueError as error:
        print(f"algorithms: {error}", file=sys.stderr)
        return 2
    namespaces.remove_stale()
    try:
        for cell in cells:
            if pairs := file.lacks(cell, sides):
                file.drop(cell, pairs)
                _read(known[cell.network], cell, pairs, sides, arguments, file)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"algorithms: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("algorithms: interrupted; --resume continues", file=sys.stderr)
        return 130
    finally:
        file.close()
    return 0
