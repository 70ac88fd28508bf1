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


def regrets(cell: Sequence[Reading], backend: str) -> list[float]:
    """What ``auto`` loses: its step by that of its best candidate, in each pair that has read them all.

    The best one has the shortest step in the median over these pairs. A pair's shortest step would be its luckiest.
    """
    seconds = {(each["pair"], each["side"]): each["seconds"] for each in cell}
    own, *rivals = (f"{backend} {way}" for way in ("auto", *CANDIDATES))
    pairs = [
        pair
        for pair in sorted({pair for pair, _ in seconds})
        if all((pair, side) in seconds for side in (own, *rivals))
    ]
    if not pairs:
        return []
    best = min(rivals, key=lambda side: median(seconds[pair, side] for pair in pairs))
    return [seconds[pair, own] / seconds[pair, best] for pair in pairs]


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
        found = regrets(cell, backend)
        spread = f"{median(found):.2f} [{min(found):.2f}–{max(found):.2f}]" if found else "–"
        model, network, ranks = name
        yield f"| {model} | {network} | {ranks} | {backend} | {named} | {spread} |"


def _regrets(cells: dict[tuple[Any, ...], list[Reading]]) -> list[str]:
    rows = [row for name, cell in cells.items() for row in _regret_rows(name, cell)]
    if not rows:
        return []
    return [
        "",
        "## What auto loses",
        "",
        "Its step by that of the candidate (plain, bf16, ByteGrad 8) that is fastest in the median over the pairs, on "
        "the same backend in the same pair, and the median of these ratios. It chooses anew in each pair.",
        "",
        "| model | network | ranks | backend | chosen | × the fastest |",
        "|---|---|---|---|---|---|",
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
