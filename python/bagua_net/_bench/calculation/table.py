# SPDX-License-Identifier: MIT
"""A calculation as a table, with what it assumes, and as JSON. Its figures never stand beside measured ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from .step import BACKWARD, Calculation, Step

#: Of the first column, and of each other one.
_WIDTHS = 35, 11
_HEADINGS = (
    ("algorithm", "sent", "network", "hidden", "step", "efficiency"),
    ("", "(MB)", "(ms)", "(ms)", "(ms)", ""),
)
#: Columns that need no computation.
_ALWAYS = 3


def lines(found: Calculation) -> Iterator[str]:
    """The table, below what it is of, and above its assumptions."""
    columns = _ALWAYS if found.compute_s is None else len(_HEADINGS[0])
    yield f"# Calculated, not measured: a step of {found.load} among {found.nranks} ranks"
    yield f"# link of each rank: {found.link.source}"
    yield f"# latency: {found.link.latency_s * 1e6:g} us"
    for heading in _HEADINGS:
        yield "#" + _line(heading[:columns])[1:]
    for step in found.steps:
        yield _line(_cells(step)[:columns])
    yield "#"
    yield from (f"# {sentence}" for sentence in _assumptions(found.compute_s))


def _line(cells: Sequence[str]) -> str:
    first, *others = cells
    return (first.rjust(_WIDTHS[0]) + "".join(f" {cell.rjust(_WIDTHS[1])}" for cell in others)).rstrip()


def _cells(step: Step) -> tuple[str, ...]:
    return (
        step.algorithm,
        f"{step.sent_bytes / 1e6:.4g}",
        *(_ms(seconds) for seconds in (step.network_s, step.hidden_s, step.step_s)),
        "" if step.efficiency is None else f"{step.efficiency:.3f}",
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def _assumptions(compute_s: float | None) -> Iterator[str]:
    yield "sent: by each rank, for gradients of float32 in DDP's buckets; QAdam after its warm-up; DiLoCo in the mean"
    yield "network: 2 (n - 1) latency + sent / rate for each average of n ranks (Thakur, Rabenseifner, Gropp, 2005);"
    yield "what processors take, to encode and to move bytes, comes on top"
    if compute_s is not None:
        backward = f"{BACKWARD:.0%} of a computation of {_ms(compute_s)} ms"
        yield f"hidden: what passes while backward computes the gradients of later buckets, {backward}"
        yield "efficiency: the computation over the step"
    else:
        yield "with --compute MS, what a step takes under model.no_sync(): hidden, step and efficiency"


def write(path: Path, command: list[str], found: Calculation) -> None:
    """Raises OSError where the file cannot be written."""
    record = {"command": command, "calculated": asdict(found)}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
