# SPDX-License-Identifier: MIT
"""The file of readings, and the tables that are made of it.

The first line describes the run; each further line is a side on a network, with a training for each seed: after every
so many steps the seconds that it took until then, and the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.report import jsonl
from benchmarks.report.jsonl import Reading

#: Accuracy is the mean of so many copies: that of one jitters.
_SMOOTHED = 3
#: What exact averages reach after this part of their steps is to be reached.
_PART = 2 / 3


_OF_A_SIDE = ("task", "network", "against", "side")


def load(path: Path) -> tuple[dict[str, Any], list[Reading]]:
    head, rows = jsonl.load(path)
    place = [{name: row[name] for name in _OF_A_SIDE} for row in rows]
    return head, [{**where, **run} for where, row in zip(place, rows, strict=True) for run in row["runs"]]


def lines(head: dict[str, Any], readings: Iterable[Reading]) -> str:
    rows: dict[tuple[str, ...], Reading] = {}
    for reading in readings:
        where = {name: reading[name] for name in _OF_A_SIDE}
        row = rows.setdefault(tuple(where.values()), {**where, "runs": []})
        row["runs"].append({name: value for name, value in reading.items() if name not in where})
    return jsonl.text(head, rows.values())


def rounded(reading: Reading) -> Reading:
    """Milliseconds, hundredths of a point."""
    return {
        **reading,
        "seconds": [round(each, 3) for each in reading["seconds"]],
        "accuracy": [round(each, 2) for each in reading["accuracy"]],
    }


def line(reading: Reading) -> str:
    """For the terminal."""
    return (
        f"{reading['task']}, {reading['network']}: seed {reading['seed']}, {reading['side']}: "
        f"{reading['accuracy'][-1]:.2f} % after {reading['seconds'][-1]:.1f} s"
    )


def smoothed(reading: Reading) -> list[float]:
    """With the copies before."""
    values = reading["accuracy"]
    return [mean(values[max(0, end - _SMOOTHED) : end]) for end in range(1, len(values) + 1)]


def wanted(exact: Reading) -> float:
    """The accuracy that is to be reached."""
    values = smoothed(exact)
    return values[max(0, round(len(values) * _PART) - 1)]


def reached(reading: Reading, accuracy: float) -> int | None:
    """The number of the first copy with this accuracy."""
    return next((number for number, value in enumerate(smoothed(reading)) if value >= accuracy), None)


class _Table:
    """A task on a network."""

    def __init__(self, readings: Sequence[Reading], every: int) -> None:
        self._every = every
        self._by_name = {(each["side"], each["seed"]): each for each in readings}
        self._seeds = sorted({each["seed"] for each in readings})
        self._sides = dict.fromkeys((each["side"], each["against"]) for each in readings if each["seed"] == 0)

    def lines(self) -> list[str]:
        out = [
            "| | compared with | reached | steps | seconds | × gloo exact | × bagua_net exact |",
            "|---|---|---|---|---|---|---|",
        ]
        return out + [self._line(*each) for each in self._sides]

    def _line(self, side: str, against: str) -> str:
        ends = {seed: self._end(side, seed, against) for seed in self._seeds}
        there = {seed: end for seed, end in ends.items() if end is not None}
        cells = [side, against, f"{len(there)} of {len(ends)}"]
        if not there:
            return f"| {' | '.join(cells)} | – | – | – | – |"
        cells += [f"{median(steps for steps, _ in there.values()):g}"]
        cells += [_spread([seconds for _, seconds in there.values()])]
        for backend in ("gloo", "bagua_net"):
            rivals = {seed: self._end(f"{backend} {against}", seed, against) for seed in there}
            cells.append(_factor([rival[1] / there[seed][1] for seed, rival in rivals.items() if rival is not None]))
        return f"| {' | '.join(cells)} |"

    def _end(self, side: str, seed: int, against: str) -> tuple[int, float] | None:
        """Steps and seconds until the accuracy that is to be reached with this seed."""
        reading = self._by_name[side, seed]
        number = reached(reading, wanted(self._by_name[f"bagua_net {against}", seed]))
        return None if number is None else ((number + 1) * self._every, reading["seconds"][number])


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} [{min(values):.3g}–{max(values):.3g}]"


def _factor(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"**{median(values):.2f}**" if median(values) < 1 else f"{median(values):.2f}"


def render(head: dict[str, Any], readings: Sequence[Reading]) -> str:
    machine, settings = head["machine"], head["settings"]
    out = [
        "# Time to equal accuracy",
        "",
        f"{head['started']}, `{head['command']}`: {machine['cpu']}, {machine['cores']} processors, Linux "
        f"{machine['kernel']}, Python {machine['python']}, torch {settings['torch']}, bagua_net "
        f"{settings['bagua_net']}; {settings['ranks']} ranks on two hosts, {settings['seeds']} seeds, "
        f"{settings['steps']} steps. Accuracy is that of the mean of the ranks' weights on what was not trained on, "
        f"every {settings['every']} steps, smoothed over {_SMOOTHED} values. Where ranks train apart, none has that "
        "mean before the end, and making it takes no time here; DiLoCo is judged at its rounds. To be reached is what "
        "exact averages over "
        "bagua_net have after two thirds of their steps, with the same seed and the named optimizer. Steps and seconds "
        "are medians over the seeds that reach it, with [min–max]; × is the median of the ratio of times within a "
        "seed; slower is bold.",
    ]
    cells: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        cells.setdefault((reading["task"], reading["network"]), []).append(reading)
    for (task, network), cell in cells.items():
        out += ["", f"## {task[0].upper()}{task[1:]}, {network}", "", *_Table(cell, settings["every"]).lines()]
    return "\n".join(out) + "\n"
