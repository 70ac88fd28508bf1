# SPDX-License-Identifier: MIT
"""The figures in sentences: where this network is faster, and where it is slower.

A size counts as faster or slower only where the rounds agree. Round i of one transport is paired with round i of the
other, which ran next to it. The verdict stands if the medians differ by more than 2 %, of at least three pairs, and at
most one pair in five contradicts it. Otherwise there is no clear difference. On a busy machine there is no verdict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ... import _sizes
from ..workload.result import Row

#: The first of these in a run is compared with each other transport.
_LEADING = ("bagua+u8", "bagua+u4", "bagua", "nccl+bagua", "torch+bagua", "nccl+other")

_NOISE = 0.02
_FEWEST_PAIRS = 3
#: The share of the processors that other programs may take on a quiet machine.
_QUIET = 0.05


@dataclass(frozen=True)
class Comparison:
    label: str
    """The model's name, or ""."""
    size: int
    ratio: float
    """Their time over ours: above 1, we are faster."""
    verdict: str
    """ "faster", "slower" or "unclear"."""


def compare(ours: Row, theirs: Row) -> Comparison:
    pairs = [other / own for own, other in zip(ours.rounds, theirs.rounds, strict=True)]
    ratio = theirs.seconds / ours.seconds
    return Comparison(ours.label, ours.size, ratio, _verdict(ratio, pairs))


def _verdict(ratio: float, pairs: list[float]) -> str:
    exceptions = len(pairs) // 5
    if len(pairs) < _FEWEST_PAIRS:
        return "unclear"
    if ratio > 1 + _NOISE and sum(pair <= 1 for pair in pairs) <= exceptions:
        return "faster"
    if ratio < 1 - _NOISE and sum(pair >= 1 for pair in pairs) <= exceptions:
        return "slower"
    return "unclear"


def _span(label: str, sizes: list[int]) -> str:
    if label:
        return f"on {label}"
    first, last = _sizes.show(sizes[0]), _sizes.show(sizes[-1])
    return f"at {first}" if len(sizes) == 1 else f"from {first} to {last}"


def _times(group: list[Comparison]) -> str:
    low, high = (f"{pick(row.ratio for row in group):.2f}" for pick in (min, max))
    return f"{low} ×" if low == high else f"{low} to {high} ×"


def _clause(verdict: str, group: list[Comparison]) -> str:
    span = _span(group[0].label, [one.size for one in group])
    if verdict == "unclear":
        return f"no clear difference {span}"
    return f"{verdict} {span} ({_times(group)} its speed)"


def _by_transport(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.transport, []).append(row)
    return found


def _alone(name: str, rows: list[Row]) -> str:
    first = rows[0]
    if first.label:
        return (
            f"{name}: the gradients of {first.label} in {first.seconds * 1e3:.1f} ms per step, {first.busbw:.3g} GB/s."
        )
    best = max(rows, key=lambda row: row.busbw)
    return (
        f"{name}: {_sizes.show(first.size)} in {first.seconds * 1e6:.1f} us; "
        f"at best {best.busbw:.3g} GB/s of bus bandwidth, at {_sizes.show(best.size)}."
    )


def _against(name: str, ours: list[Row], rival: str, theirs: list[Row], crowded: bool) -> str:
    if crowded:
        return f"{name} against {rival}: no verdict: the machine was busy."
    verdicts = [compare(own, other) for own, other in zip(ours, theirs, strict=True)]
    clauses = [
        _clause(verdict, list(group)) for verdict, group in itertools.groupby(verdicts, key=lambda row: row.verdict)
    ]
    return f"{name} against {rival}: {'; '.join(clauses)}."


def _chosen(name: str, rows: list[Row]) -> Iterator[str]:
    """What the network chose, by size; nothing where it does not say."""
    groups = [(text, list(group)) for text, group in itertools.groupby(rows, key=lambda row: row.chosen)]
    clauses = [f"{text} {_span(group[0].label, [row.size for row in group])}" for text, group in groups if text]
    if clauses:
        yield f"{name} chose {', '.join(clauses)}."


def sentences(rows: list[Row], where: str, missing: dict[str, str], *, crowded: bool = False) -> Iterator[str]:
    """The measurement, each transport's figures, ours against each other one, and the transports not compared.

    Args:
        rows: all rows of the run; all transports have the same sizes.
        where: "between 2 ranks on this machine, over loopback" or the like.
        missing: transport → why it was not measured.
        crowded: the figures say nothing about which is faster.
    """
    wrong = sum(row.wrong for row in rows)
    correct = "every result was checked, 0 wrong" if wrong == 0 else f"{wrong} ELEMENTS ARE WRONG"
    yield f"Measured: {rows[0].op} of {rows[0].dtype} {where}; {correct}."
    by_name = _by_transport(rows)
    for name, own in by_name.items():
        yield _alone(name, own)
        yield from _chosen(name, own)
    us = next((name for name in _LEADING if name in by_name), None)
    for rival, theirs in by_name.items():
        if us is not None and rival != us:
            yield _against(us, by_name[us], rival, theirs, crowded)
    for name, reason in missing.items():
        yield f"Not compared: {name} ({reason})."


def busy(ranks: int, cores: int, others: float) -> bool:
    """Did other programs take processor time that the ranks needed?

    Args:
        ranks: the number on this machine.
        cores: the number on which they may run.
        others: the mean number of these cores that other programs used during the run.
    """
    return others > _QUIET * cores and ranks + others > cores


def contention(ranks: int, cores: int, others: float, allowed: int | None = None) -> list[str]:
    """A sentence about what distorts the figures of one machine; empty where nothing does.

    Args:
        ranks, cores, others: see :func:`busy`.
        allowed: the number of cores that they may use at a time, where a container has a limit. None: all of them.
    """
    used = cores if allowed is None else min(allowed, cores)
    if ranks > used:
        return [
            f"Mind that {ranks} ranks shared {used} processor core{'s' if used > 1 else ''}: "
            "these figures are the scheduler's as well."
        ]
    if busy(ranks, cores, others):
        return [f"Mind that this machine was busy: other programs took {others:.1f} of {cores} processor cores."]
    return []
