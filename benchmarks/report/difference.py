# SPDX-License-Identifier: MIT
"""Two results files: where the plugin became slower beside a rival, or faster, beyond what the pairs vary by.

Values of two runs say nothing beside each other, and ratios within pairs do: of each row that both files have, and of
each side that both measured beside the plugin. A row counts where the later median of the ratios is beyond all earlier
ratios but one in five, the earlier median is beyond all later ones but one in five, and they differ by more than 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.report.figures import number
from benchmarks.report.results import CellRecord, Results
from benchmarks.run.scenarios import WORKS

_RIVALS = ("nccl", "tuned", "gloo", "one stream", "raw", "baseline")
_NOISE = 0.02
_FEWEST = 3


@dataclass(frozen=True)
class Change:
    """Of a row beside one rival. Ratios above 1: the plugin is the better one, whatever the unit."""

    key: str
    rival: str
    before: list[float]
    after: list[float]

    @property
    def verdict(self) -> str:
        """ "slower", "faster", or "" where that is not clear."""
        was, now = median(self.before), median(self.after)
        if min(len(self.before), len(self.after)) < _FEWEST or abs(now / was - 1) <= _NOISE:
            return ""
        if now < was:
            return "slower" if _above(was, self.after) and _above_all(self.before, now) else ""
        return "faster" if _above(now, self.before) and _above_all(self.after, was) else ""


def _above(value: float, ratios: list[float]) -> bool:
    """Is it above all of these but one in five?"""
    return sum(each >= value for each in ratios) <= len(ratios) // 5


def _above_all(ratios: list[float], value: float) -> bool:
    """Are these above it, all but one in five?"""
    return sum(each <= value for each in ratios) <= len(ratios) // 5


def _gains(record: CellRecord, rival: str) -> list[float]:
    """The ratio of each pair."""
    own, other = record.values("ours"), record.values(rival)
    found = [own[pair] / other[pair] for pair in own if own[pair] and other.get(pair)]
    return [1 / each for each in found] if WORKS[record.cell.work].less else found


def changes(before: Results, after: Results) -> list[Change]:
    """Of what both files have, in the later one's order."""
    found = [
        Change(key, rival, _gains(before.cells[key], rival), _gains(record, rival))
        for key, record in after.cells.items()
        if key in before.cells
        for rival in _RIVALS
    ]
    return [change for change in found if change.before and change.after]


def lines(found: list[Change]) -> Iterator[str]:
    """A table of the rows that changed, and how many did not."""
    changed = [change for change in found if change.verdict]
    if changed:
        yield "| row | beside | × before | × after | |"
        yield "|---|---|---|---|---|"
    for change in changed:
        was, now = (number(median(ratios)) for ratios in (change.before, change.after))
        yield f"| {change.key.replace(' | ', ', ')} | {change.rival} | {was} | {now} | {change.verdict} |"
    yield f"{len(found) - len(changed)} of {len(found)} ratios show no difference beyond what their pairs vary by."
