# SPDX-License-Identifier: MIT
"""The file of readings, and the tables that are made of it.

The first line describes the run; each further line is a row on a task and a backend, with how its run ended for each
seed. Rows named "exact" are what the others are compared with, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from benchmarks.report.jsonl import Reading

EXACT = "exact"


def rounded(reading: Reading) -> Reading:
    """Hundredths of a point, ten-thousandths of a loss, kilobytes."""
    digits = {"accuracy": 2, "loss": 4, "megabytes": 3}
    runs = [
        {name: round(value, digits[name]) if name in digits else value for name, value in run.items()}
        for run in reading["runs"]
    ]
    return {**reading, "runs": runs}


def _exact_of(reading: Reading, readings: Iterable[Reading]) -> Reading:
    place = (reading["task"], reading["backend"], reading["against"])
    return next(
        one for one in readings if one["row"] == EXACT and (one["task"], one["backend"], one["optimizer"]) == place
    )


def gains(reading: Reading, readings: Iterable[Reading]) -> list[float]:
    """Points of accuracy against exact averages, for each seed."""
    pairs = zip(reading["runs"], _exact_of(reading, readings)["runs"], strict=True)
    return [ours["accuracy"] - exact["accuracy"] for ours, exact in pairs]


def is_within(reading: Reading, readings: Iterable[Reading]) -> bool:
    """The bound on the accuracy holds, and the ranks are equal where they must be."""
    equal = all(run["equal"] for run in reading["runs"]) or not reading["equal"]
    return mean(gains(reading, readings)) >= -reading["points"] and equal


def line(reading: Reading, readings: Iterable[Reading]) -> str:
    """For the terminal."""
    gained = gains(reading, readings)
    return f"{reading['row']}: {_accuracy(reading):.2f} %, {mean(gained):+.2f} points"


def _accuracy(reading: Reading) -> float:
    return float(mean(run["accuracy"] for run in reading["runs"]))


def _gained(reading: Reading, readings: Sequence[Reading]) -> str:
    gained = gains(reading, readings)
    text = f"{mean(gained):+.2f} [{min(gained):+.2f} to {max(gained):+.2f}]"
    return text if is_within(reading, readings) else f"**{text}**"


def _table(readings: Sequence[Reading], all_of: Sequence[Reading]) -> list[str]:
    """A row of the file for each line; backends beside each other."""
    backends = list(dict.fromkeys(reading["backend"] for reading in readings))
    rows: dict[tuple[str, str], dict[str, Reading]] = {}
    for reading in readings:
        rows.setdefault((reading["row"], reading["optimizer"]), {})[reading["backend"]] = reading
    out = [
        "| | optimizer | " + " | ".join(f"{backend}: accuracy | points" for backend in backends) + " | may lose | MB |",
        "|---" * (2 * len(backends) + 4) + "|",
    ]
    for (label, optimizer), by_backend in rows.items():
        cells = []
        for backend in backends:
            reading = by_backend[backend]
            points = "" if label == EXACT else _gained(reading, all_of)
            cells += [f"{_accuracy(reading):.2f}", points]
        last = by_backend[backends[-1]]
        sent = mean(run["megabytes"] for run in last["runs"])
        may = "" if label == EXACT else f"{last['points']:.1f}"
        out.append(f"| {label} | {optimizer} | {' | '.join(cells)} | {may} | {f'{sent:.2f}' if sent else ''} |")
    return out


def render(head: dict[str, Any], readings: Sequence[Reading]) -> str:
    machine, settings = head["machine"], head["settings"]
    out = [
        "# Accuracy with algorithms and with exact averages",
        "",
        f"{head['started']}, `{head['command']}`: {machine['cpu']}, {machine['cores']} processors, Linux "
        f"{machine['kernel']}, Python {machine['python']}, torch {settings['torch']}, bagua_net "
        f"{settings['bagua_net']}; {settings['ranks']} ranks, {settings['seeds']} seeds. A seed is a pair of runs from "
        "the same weights over the same data. Accuracy is the percentage of what was not trained on, in the mean over "
        "the seeds and the ranks; points are the difference to exact averages with the same or the named optimizer, "
        "the mean over the seeds, with the least and the greatest in brackets. A row is bold whose mean is below what "
        "it may lose, or whose ranks differ and must not. MB is what a rank sent, as the algorithm counts.",
    ]
    for task in dict.fromkeys(reading["task"] for reading in readings):
        here = [reading for reading in readings if reading["task"] == task]
        out += ["", f"## {task[0].upper()}{task[1:]}, {settings['steps'][task]} steps", "", *_table(here, readings)]
    compared = [reading for reading in readings if reading["row"] != EXACT]
    within = sum(is_within(reading, readings) for reading in compared)
    out += ["", f"{within} of {len(compared)} rows are within their bounds."]
    return "\n".join(out) + "\n"
