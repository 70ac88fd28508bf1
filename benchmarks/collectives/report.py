# SPDX-License-Identifier: MIT
"""The file of readings, and the tables that are made of it.

The first line describes the run; each further line is a reading: where, what, how many bytes, and for each side one
value for each pair. Values are microseconds, except in the rows that name another unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.report.jsonl import Reading

OURS, THEIRS = "bagua_net", "gloo"


def rounded(reading: Reading) -> Reading:
    """Four digits of each value: the readings spread by more."""
    sides = {side: [float(f"{value:.4g}") for value in values] for side, values in reading["sides"].items()}
    return {**reading, "sides": sides}


def ratio(reading: Reading) -> float | None:
    """How many times as fast as gloo: the median over the pairs; None where gloo has no such operation."""
    ours, theirs = (reading["sides"].get(side, []) for side in (OURS, THEIRS))
    if not ours or not theirs:
        return None
    return float(median(other / mine for mine, other in zip(ours, theirs, strict=True)))


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return "" if nbytes == 0 else f"{nbytes} B"


def _factor(value: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"**{text}**" if value < 1 else text


def _place(reading: Reading) -> str:
    hosts = "one host" if reading["hosts"] == 1 else f"{reading['hosts']} hosts"
    return f"{reading['ranks']} ranks on {hosts}"


def _table(readings: Sequence[Reading]) -> list[str]:
    """Calls by sizes: × gloo, with the time of a call over bagua_net in µs."""
    sizes = sorted({reading["bytes"] for reading in readings})
    rows: dict[str, dict[int, Reading]] = {}
    for reading in readings:
        rows.setdefault(reading["name"], {})[reading["bytes"]] = reading
    out = ["| | " + " | ".join(_size(size) for size in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name, cells in rows.items():
        texts = []
        for size in sizes:
            if size not in cells:
                texts.append("")
                continue
            ours = median(cells[size]["sides"][OURS])
            texts.append(f"{_factor(ratio(cells[size]))} ({ours:,.0f})")
        out.append(f"| {name} | " + " | ".join(texts) + " |")
    return out


def _single(readings: Sequence[Reading]) -> list[str]:
    """Readings without a size: both sides and the ratio."""
    out = ["| | bagua_net | gloo | × gloo |", "|---|---|---|---|"]
    for reading in readings:
        columns = [_spread(reading["sides"].get(side, [])) for side in (OURS, THEIRS)]
        out.append(f"| {reading['name']} | {' | '.join(columns)} | {_factor(ratio(reading))} |")
    return out


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} [{min(values):,.0f}–{max(values):,.0f}]" if values else "–"


def render(head: dict[str, Any], readings: Sequence[Reading]) -> str:
    machine, settings = head["machine"], head["settings"]
    out = [
        "# torch.distributed over bagua_net and over gloo",
        "",
        f"{head['started']}, `{head['command']}`: {machine['cpu']}, {machine['cores']} processors, Linux "
        f"{machine['kernel']}, torch {settings['torch']}, bagua_net {settings['bagua_net']}; "
        f"{settings['pairs']} pairs. The same processes have a group of each backend and call them in turn. A value is "
        "the time of a call on the slowest rank, its size that of a rank's larger buffer (of a message). In the "
        "tables: how many times as fast as gloo, the median over the pairs, and in parentheses the microseconds over "
        "bagua_net. A loss is bold; – means that gloo has no such operation.",
    ]
    for place in dict.fromkeys(_place(reading) for reading in readings):
        here = [reading for reading in readings if _place(reading) == place]
        sized, single = ([one for one in here if (one["bytes"] > 0) is wanted] for wanted in (True, False))
        out += ["", f"## {place[0].upper()}{place[1:]}"]
        if sized:
            out += ["", *_table(sized)]
        if single:
            out += [
                "",
                "Microseconds; the processor time of a wait is in thousandths of the wait.",
                "",
                *_single(single),
            ]
    known = [value for reading in readings if (value := ratio(reading)) is not None]
    out += ["", f"{sum(value >= 1 for value in known)} of {len(known)} rows are at least as fast as gloo."]
    return "\n".join(out) + "\n"
