# SPDX-License-Identifier: MIT
"""The file of readings, and the tables that are made of it.

Lines with "started" describe the runs whose readings the file has; each further line is a reading of one side.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.steps.networks import least_seconds

Reading = dict[str, Any]

_CELL = ("model", "network", "ranks")
#: The ways that ``auto`` chooses among, in its order.
CANDIDATES = ("plain", "bf16", "ByteGrad 8")


def load(path: Path) -> tuple[list[dict[str, Any]], list[Reading]]:
    """Descriptions of the runs, and readings."""
    all_of = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in all_of if "started" in one], [one for one in all_of if "started" not in one]


def lines(heads: Iterable[dict[str, Any]], readings: Iterable[Reading]) -> str:
    return "".join(json.dumps(line, separators=(", ", ": ")) + "\n" for line in (*heads, *readings))


def save(path: Path, heads: Iterable[dict[str, Any]], readings: Iterable[Reading]) -> None:
    """Whole, whenever the process ends."""
    new = path.with_suffix(".new")
    new.write_text(lines(heads, readings))
    new.replace(path)


def cell_of(reading: Reading) -> tuple[Any, ...]:
    """The model, the network, and the number of ranks."""
    return tuple(reading[name] for name in _CELL)


def rounded(reading: Reading) -> Reading:
    """Four digits of each value: the readings spread by more."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in reading.items()}


def line(reading: Reading) -> str:
    """For the terminal."""
    chosen = f", has chosen {reading['chosen']}" if "chosen" in reading else ""
    return f"pair {reading['pair']}, {reading['side']}: {reading['seconds']:.3f} s a step{chosen}"


def speedup(cell: Sequence[Reading], side: str, rival: str) -> float | None:
    """How many times as fast a step of ``side`` is: the median over the pairs. None: one of them was not read."""
    seconds = {(each["side"], each["pair"]): each["seconds"] for each in cell}
    pairs = [pair for name, pair in seconds if name == side and (rival, pair) in seconds]
    return median(seconds[rival, pair] / seconds[side, pair] for pair in pairs) if pairs else None


def _pairs_with_auto(cell: Sequence[Reading], backend: str) -> tuple[list[Reading], dict[str, list[float]]]:
    """Auto's readings in the pairs that have read all of its candidates, and these candidates' seconds there by way."""
    read = {(each["pair"], each["side"]): each for each in cell}
    ways = ("auto", *CANDIDATES)
    pairs = [
        [read[pair, f"{backend} {way}"] for way in ways]
        for pair in sorted({pair for pair, _ in read})
        if all((pair, f"{backend} {way}") in read for way in ways)
    ]
    return [pair[0] for pair in pairs], {
        way: [pair[place]["seconds"] for pair in pairs] for place, way in enumerate(CANDIDATES, 1)
    }


def _best(seconds: dict[str, list[float]]) -> str:
    """In the median over the pairs. A pair's shortest step would be its luckiest."""
    return min(seconds, key=lambda way: median(seconds[way]))


def regrets(cell: Sequence[Reading], backend: str) -> list[float]:
    """What ``auto`` loses: its step by that of its best candidate, in each pair that has read them all."""
    own, seconds = _pairs_with_auto(cell, backend)
    return [each["seconds"] / best for each, best in zip(own, seconds[_best(seconds)], strict=True)] if own else []


def choices(cell: Sequence[Reading], backend: str) -> list[float]:
    """The step of what ``auto`` chose in each of these pairs by that of its best candidate, both medians over all."""
    own, seconds = _pairs_with_auto(cell, backend)
    return [median(seconds[each["chosen"]]) / median(seconds[_best(seconds)]) for each in own]


def _factor(value: float | None) -> str:
    if value is None:
        return "–"
    return f"**{value:.2f}**" if value < 1 else f"{value:.2f}"


def _pair(reading: Reading) -> int:
    return int(reading["pair"])


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} [{min(values):.3g}–{max(values):.3g}]"


def _table(cell: Sequence[Reading]) -> list[str]:
    out = [
        "| | s a step | × gloo plain | × bagua_net plain | MB sent | network s | processor s |",
        "|---|---|---|---|---|---|---|",
    ]
    for side in dict.fromkeys(each["side"] for each in sorted(cell, key=_pair)):
        here = [each for each in cell if each["side"] == side]
        factors = [_factor(speedup(cell, side, f"{rival} plain")) for rival in ("gloo", "bagua_net")]
        sent = median(each["sent"] for each in here)
        out.append(
            f"| {side} | {_spread([each['seconds'] for each in here])} | {' | '.join(factors)} | {sent / 1e6:.4g} | "
            f"{_least(cell[0]['network'], sent)} | {median(each['processor_s'] for each in here):.3g} |"
        )
    return out


def _least(network: str, sent: float) -> str:
    seconds = least_seconds(network, sent)
    return "–" if seconds is None else f"{seconds:.3g}"


def _regret_rows(name: tuple[Any, ...], cell: Sequence[Reading]) -> Iterator[str]:
    for side in dict.fromkeys(each["side"] for each in cell if each["side"].endswith(" auto")):
        backend = side.split(" ", 1)[0]
        chosen = Counter(each["chosen"] for each in sorted(cell, key=_pair) if each["side"] == side)
        named = ", ".join(f"{way} ({times} ×)" if len(chosen) > 1 else way for way, times in chosen.items())
        figures = [_range(each(cell, backend)) for each in (regrets, choices)]
        model, network, ranks = name
        yield f"| {model} | {network} | {ranks} | {backend} | {named} | {' | '.join(figures)} |"


def _range(factors: Sequence[float]) -> str:
    return f"{median(factors):.2f} [{min(factors):.2f}–{max(factors):.2f}]" if factors else "–"


def _regrets(cells: dict[tuple[Any, ...], list[Reading]]) -> list[str]:
    rows = [row for name, cell in cells.items() for row in _regret_rows(name, cell)]
    if not rows:
        return []
    return [
        "",
        "## What auto loses",
        "",
        "Its step by that of the candidate (plain, bf16, ByteGrad 8) that is fastest in the median over the pairs, on "
        "the same backend in the same pair, and the median of these ratios. Beside it the step of what it chose, by "
        "that of the same candidate, both medians over the pairs: without what its own steps happened to take. It "
        "chooses anew in each pair.",
        "",
        "| model | network | ranks | backend | chosen | × the fastest | its choice × the fastest |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def _run(head: dict[str, Any]) -> str:
    machine, settings = head["machine"], head["settings"]
    return (
        f"- {head['started']}, `{head['command']}`: {machine['cpu']}, {machine['cores']} processors, Linux "
        f"{machine['kernel']}, torch {settings['torch']}, bagua_net {settings['bagua_net']}, backward "
        f"{settings['backward_s']} s"
    )


def render(heads: Sequence[dict[str, Any]], readings: Sequence[Reading]) -> str:
    out = [
        "# Steps of DistributedDataParallel with and without the algorithms",
        "",
        "Ranks on two hosts train a model that has the parameters of a known one; its backward pass takes a fixed time "
        "and no processor. All sides are read in the same processes, in alternation. A value is that of a step: its "
        "time on the slowest rank with the optimizer's, what the first host has sent, the time that the network's caps "
        "need for it, and the processor time of all ranks. Medians with [min–max]; ratios are medians of the ratio "
        "within a pair; a loss is bold.",
        "",
        *map(_run, heads),
    ]
    cells: dict[tuple[Any, ...], list[Reading]] = {}
    for reading in readings:
        cells.setdefault(cell_of(reading), []).append(reading)
    for (model, network, ranks), cell in cells.items():
        out += ["", f"## {model}, {network}, {ranks} ranks", "", *_table(cell)]
    return "\n".join([*out, *_regrets(cells)]) + "\n"
