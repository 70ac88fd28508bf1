# SPDX-License-Identifier: MIT
"""Readings as text: medians with their spread, ratios within pairs, a loss in bold."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, MIB, WORKS

NOTHING = "–"


def size(nbytes: int) -> str:
    """ "64 KiB", "4 B"."""
    if nbytes >= MIB:
        return f"{nbytes // MIB} MiB"
    return f"{nbytes // KIB} KiB" if nbytes >= KIB else f"{nbytes} B"


def number(value: float) -> str:
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def span(values: Mapping[int, float]) -> str:
    """The median of all pairs with the lowest and the highest."""
    if not values:
        return NOTHING
    text = number(median(values.values()))
    if len(values) > 1:
        text += f" [{number(min(values.values()))}–{number(max(values.values()))}]"
    return text


def spread(record: CellRecord, side: str) -> str:
    """The readings of one side with the number that failed."""
    text = span(record.values(side))
    failures = len(record.failures(side))
    if not failures:
        return text
    return f"{failures} failed" if text == NOTHING else f"{text}, {failures} failed"


def detail(record: CellRecord, side: str, name: str) -> str:
    """The median of a further figure."""
    values = record.details(side, name)
    return number(median(values.values())) if values else NOTHING


def whole(record: CellRecord, side: str, name: str) -> str:
    """The same where it is a count."""
    values = record.details(side, name)
    return str(round(median(values.values()))) if values else NOTHING


def ratio_of(own: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """The median over pairs of own / other."""
    pairs = [own[pair] / other[pair] for pair in own if other.get(pair)]
    return median(pairs) if pairs else None


def ratio(record: CellRecord, side: str, rival: str) -> float | None:
    """The median over pairs of side / rival."""
    return ratio_of(record.values(side), record.values(rival))


def gain(record: CellRecord, rival: str) -> float | None:
    """The plugin's advantage, whatever the unit: above 1 it is better."""
    found = ratio(record, "ours", rival)
    return 1 / found if found and WORKS[record.cell.work].less else found


def marked(text: str, lost: bool) -> str:
    """Bold where the plugin loses."""
    return f"**{text}**" if lost else text


def ratio_text(record: CellRecord, rival: str) -> str:
    """The plugin's figure as a multiple of a rival's."""
    found = ratio(record, "ours", rival)
    if found is None:
        return NOTHING
    text = f"{found:.2f}"
    return marked(text, float(text) > 1 if WORKS[record.cell.work].less else float(text) < 1)


def better_nccl(record: CellRecord) -> str:
    """The side of NCCL that did better in this cell."""
    tuned, default = record.values("tuned"), record.values("nccl")
    if not tuned or not default:
        return "tuned" if tuned else "nccl"
    more = median(tuned.values()) > median(default.values())
    return "tuned" if more is not WORKS[record.cell.work].less else "nccl"
