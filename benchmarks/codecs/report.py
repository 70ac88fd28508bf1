# SPDX-License-Identifier: MIT
"""The file of readings, and the tables that are made of it.

The first line describes the run; the second has the speed of the codecs; each further line is a place and a size, with
the microseconds of a call of each side for each round, and the processor time of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bagua_net import _sizes
from benchmarks.report import jsonl
from benchmarks.report.jsonl import Reading

#: Uncompressed, and compressed: by the library, and stage by stage (staged.py).
PLAIN, COMPRESSED = "bagua", ("bagua+u8", "bagua+u4", "staged+u8", "staged+eager+u8")
#: GB/s of elements that a codec should reach on one processor.
GOAL = 3.0
_COLUMNS = {
    "bagua+u8": "8 bits",
    "bagua+u4": "4 bits",
    "staged+u8": "8 bits in stages",
    "staged+eager+u8": "8 bits in eager torch",
}


def load(path: Path) -> tuple[dict[str, Any], dict[str, list[float]], list[Reading]]:
    """(the run, the codecs' speed, the readings)"""
    head, (speed, *readings) = jsonl.load(path)
    return head, speed, readings


def lines(head: dict[str, Any], speed: dict[str, list[float]], readings: Iterable[Reading]) -> str:
    return jsonl.text(head, (speed, *readings))


def rounded(value: Any) -> Any:
    """Four digits of each figure: the readings spread by more."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def ratios(reading: Reading, side: str, figures: str = "us") -> list[float]:
    """How many times as fast as uncompressed, in each round; with ``processor_us``, how many times the processor
    time."""
    own, plain = reading[figures][side], reading[figures][PLAIN]
    if figures == "us":
        return [theirs / ours for ours, theirs in zip(own, plain, strict=True)]
    return [ours / theirs for ours, theirs in zip(own, plain, strict=True)]


def _factor(values: Sequence[float], *, loss: bool) -> str:
    middle = f"**{median(values):.2f}**" if loss else f"{median(values):.2f}"
    return f"{middle} [{min(values):.2f}–{max(values):.2f}]"


def _row(reading: Reading) -> str:
    cells = [_sizes.show(reading["bytes"]), f"{median(reading['us'][PLAIN]):,.0f}"]
    for side in COMPRESSED:
        found = ratios(reading, side)
        cells.append(_factor(found, loss=median(found) < 1))
    cells += [f"{median(ratios(reading, side, 'processor_us')):.2f}" for side in COMPRESSED]
    return f"| {' | '.join(cells)} |"


def _table(readings: Sequence[Reading]) -> list[str]:
    bits = [_COLUMNS[side] for side in COMPRESSED]
    names = ["", "uncompressed, µs", *(f"{each}, ×" for each in bits), *(f"{each}, processor time ×" for each in bits)]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *map(_row, readings)]


def _speed_table(speed: dict[str, list[float]]) -> list[str]:
    rows = [f"| {name} | {_factor(values, loss=median(values) < GOAL)} |" for name, values in speed.items()]
    return ["| | GB/s |", "|---|---|", *rows]


def render(head: dict[str, Any], speed: dict[str, list[float]], readings: Sequence[Reading]) -> str:
    machine, settings = head["machine"], head["settings"]
    out = [
        "# Compressed allreduce",
        "",
        f"{head['started']}, `{head['command']}`: {machine['cpu']}, {machine['cores']} processors, Linux "
        f"{machine['kernel']}, {settings['congestion_control']}, bagua_net {settings['bagua_net']}; "
        f"{settings['rounds']} rounds, blocks of {settings['block']}. Each row: the time of an uncompressed allreduce "
        "of float32, an average, on the slowest rank, the median of the rounds; how many times as fast the compressed "
        "one is, the median over the rounds [lowest–highest]; and how many times the processor time it takes. In "
        "stages: called from Python one after another, over the torch backend, with the library's codec; in eager "
        "torch: so, with a codec of torch's operations. All sides take turns in every round. A loss is bold.",
    ]
    for place in dict.fromkeys(reading["place"] for reading in readings):
        out += ["", f"## {place}", "", *_table([each for each in readings if each["place"] == place])]
    out += [
        "",
        "## The codecs alone",
        "",
        f"GB of float32 per second on one processor. Bold: below the goal, {GOAL:g} GB/s.",
        "",
        *_speed_table(speed),
    ]
    return "\n".join(out) + "\n"
