# SPDX-License-Identifier: MIT
"""The README's table of gains. A gain is the quotient of the two figures that the row shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.collectives import report as collectives
from benchmarks.report import jsonl, results
from benchmarks.report.figures import number, size, span
from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, MIB, WHOLE_NCCL
from benchmarks.steps import report as steps

RESULTS = ROOT / "benchmarks" / "results"
#: NCCL's allreduce between two ranks, with the plugin and without.
NCCL = RESULTS / "2026-11-27.jsonl"
#: Training steps.
STEPS = RESULTS / "algorithms" / "2026-11-28.jsonl"
#: torch.distributed's operations, against gloo.
COLLECTIVES = RESULTS / "torch-collectives" / "2026-11-24.jsonl"
#: Training steps on one host, against gloo: later than those of COLLECTIVES.
TRAINING = RESULTS / "torch-collectives" / "2026-11-25-training.jsonl"

#: The paths of the picture's first network, in Mbit/s: a hash puts each flow on one of them.
CLASSES = (1000,) * 8
#: About one of DDP's buckets.
_LARGE = 16 * MIB
#: NCCL's sockets in words, by the setting (threads × sockets) as the results have it.
SOCKETS = {"1 × 8": "8 sockets", "2 × 8": "16 sockets"}


@dataclass(frozen=True)
class Gain:
    """A row: the readings of both sides in one unit, of which it shows medians and spreads."""

    what: str
    rival: str
    """What it is compared with."""
    before: Sequence[float]
    """The rival's."""
    after: Sequence[float]
    unit: str
    faster: bool
    """More is better; otherwise less is."""
    source: Path

    def row(self) -> str:
        gain = quotient(self.before, self.after, faster=self.faster)
        sides = " | ".join(self._side(values) for values in (self.before, self.after))
        # A loss must not be rounded to a draw.
        shown = f"{gain:.3f}" if 0.99 < gain < 1 else f"{gain:.2f}" if gain < 2 else f"{gain:.1f}"
        return f"| {self.what} | {self.rival} | {sides} | **{shown} ×** | {link(self.source)} |"

    def _side(self, values: Sequence[float]) -> str:
        middle, _, spread = span(dict(enumerate(values))).partition(" ")
        return f"{middle} {self.unit} {spread}".rstrip()


def quotient(before: Iterable[float], after: Iterable[float], *, faster: bool) -> float:
    """How many times as good: of the medians, as a page shows them.

    Args:
        faster: more is better; otherwise less is.
    """
    old, new = (float(number(median(values))) for values in (before, after))
    return new / old if faster else old / new


def link(source: Path, folder: str = ".") -> str:
    """To the tables of a stored run, from a page in this folder."""
    return f"[{source.stem}]({os.path.relpath(source.with_suffix('.md'), ROOT / folder)})"


def nccl_cells(stored: results.Results, classes: tuple[int, ...]) -> list[CellRecord]:
    """NCCL's allreduce between two ranks over virtual Ethernet with these flow classes, smallest size first."""
    found = [
        record
        for record in stored.cells.values()
        if (record.cell.scenario, record.cell.path, record.cell.ranks) == (WHOLE_NCCL, "veth", 2)
        and record.cell.op == "allreduce"
        and record.cell.classes_mbits == classes
    ]
    return sorted(found, key=lambda record: record.cell.size)


def nccl_values(record: CellRecord, setting: str) -> dict[int, float]:
    """pair → value, of NCCL with one of its settings."""
    return {
        run.pair: run.value
        for run in record.runs
        if (run.side, run.choice) == ("tuned", setting) and run.pair >= 0 and run.value is not None
    }


def _nccl() -> Iterator[Gain]:
    stored = results.load(NCCL)
    record = next(each for each in nccl_cells(stored, CLASSES) if each.cell.size == _LARGE)
    ours = list(record.values("ours").values())
    filled = median(ours) / (record.limit or 1)
    what = (
        f"NCCL {stored.settings['nccl_version']}, allreduce of {size(_LARGE)}, eight paths of 1 Gbit/s, "
        f"of which bagua_net fills {filled * 100:.0f} %"
    )
    rivals = {
        "NCCL as it comes, one socket": record.values("nccl"),
        "16 sockets, its default on AWS": nccl_values(record, "2 × 8"),
        "8 sockets, its best setting here": nccl_values(record, "1 × 8"),
    }
    for name, values in rivals.items():
        yield Gain(what, name, list(values.values()), ours, "GB/s", True, NCCL)


def _steps() -> Iterator[Gain]:
    _, readings = steps.load(STEPS)
    here = [each for each in readings if steps.cell_of(each) == ("VGG16", "1 Gbit/s", 2)]

    def seconds(side: str) -> list[float]:
        return [each["seconds"] for each in here if each["side"] == f"bagua_net {side}"]

    what = "DDP on CPUs, a step of VGG16's size over 1 Gbit/s, ByteGrad of {} bits"
    plain, low_rank = ("plain DDP", seconds("plain")), ("torch's PowerSGD, rank 4", seconds("PowerSGD"))
    for bits, (name, before) in ((8, plain), (8, low_rank), (4, low_rank)):
        yield Gain(what.format(bits), name, before, seconds(f"ByteGrad {bits}"), "s", False, STEPS)


def _collectives() -> Iterator[Gain]:
    rows = (
        (COLLECTIVES, "all_reduce", 64 * KIB, "`all_reduce` of 64 KiB", "µs", 1),
        (COLLECTIVES, "all_reduce", 64 * MIB, "`all_reduce` of 64 MiB", "ms", 1000),
        (TRAINING, "step of ResNet-50, DDP", 0, "a DDP step of ResNet-50's size", "ms", 1000),
        (TRAINING, "step of ResNet-50, FSDP2", 0, "an FSDP2 step of ResNet-50's size", "ms", 1000),
    )
    for source, name, nbytes, what, unit, microseconds in rows:
        here = next(
            each
            for each in jsonl.load(source)[1]
            if (each["hosts"], each["ranks"], each["name"], each["bytes"]) == (1, 2, name, nbytes)
        )
        ours, theirs = (
            [value / microseconds for value in here["sides"][side]] for side in (collectives.OURS, collectives.THEIRS)
        )
        yield Gain(f"PyTorch on CPUs, {what}, one host", "gloo", theirs, ours, unit, False, source)


def gains() -> Sequence[Gain]:
    """The rows of the README.

    Raises:
        ResultsUnusable, OSError: a stored file is missing.
        StopIteration: it lacks the row.
    """
    return [*_nccl(), *_steps(), *_collectives()]


def table() -> str:
    """Markdown."""
    head = ["| | compared with | its figure | bagua_net | gain | run |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(gain.row() for gain in gains())])
