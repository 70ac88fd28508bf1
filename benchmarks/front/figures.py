# SPDX-License-Identifier: MIT
"""The README's table of gains. A gain is the quotient of the two figures that the row shows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.collectives import report as collectives
from benchmarks.report import results
from benchmarks.report.figures import number, size
from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, MIB, WHOLE_NCCL
from benchmarks.steps import report as steps

RESULTS = ROOT / "benchmarks" / "results"
#: NCCL's allreduce between two ranks, with the plugin and without.
NCCL = RESULTS / "2026-11-27.jsonl"
#: Training steps.
STEPS = RESULTS / "algorithms" / "2026-11-27.jsonl"
#: torch.distributed's operations, against gloo.
COLLECTIVES = RESULTS / "torch-collectives" / "2026-11-24.jsonl"

#: The network of the picture that limits each flow, in Mbit/s.
CLASSES = (1000,) * 8
#: About one of DDP's buckets.
_LARGE = 16 * MIB


@dataclass(frozen=True)
class Gain:
    """A row: both figures in one unit."""

    what: str
    before: tuple[str, float]
    """What it is compared with, and its figure."""
    after: float
    unit: str
    faster: bool
    """More is better; otherwise less is."""
    source: Path

    def row(self) -> str:
        name, before = self.before
        old, new = number(before), number(self.after)
        gain = float(new) / float(old) if self.faster else float(old) / float(new)
        return (
            f"| {self.what} | {name} | {old} {self.unit} | {new} {self.unit} | **{gain:.1f} ×** | {link(self.source)} |"
        )


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


def _nccl() -> Iterator[Gain]:
    stored = results.load(NCCL)
    record = next(each for each in nccl_cells(stored, CLASSES) if each.cell.size == _LARGE)
    ours = median(record.values("ours").values())
    version = stored.settings["nccl_version"]
    what = f"NCCL {version}, allreduce of {size(_LARGE)}, two ranks, each flow limited to 1 Gbit/s"
    for name, side in (("NCCL as it comes", "nccl"), ("NCCL at its best setting", "tuned")):
        yield Gain(what, (name, median(record.values(side).values())), ours, "GB/s", True, NCCL)


def _steps() -> Iterator[Gain]:
    _, readings = steps.load(STEPS)
    here = [each for each in readings if steps.cell_of(each) == ("VGG16", "1 Gbit/s", 2)]
    seconds = {
        side: median(each["seconds"] for each in here if each["side"] == side)
        for side in ("bagua_net plain", "bagua_net ByteGrad 8", "bagua_net ByteGrad 4")
    }
    what = "DDP on CPUs, a step with VGG16's parameters, two hosts, 1 Gbit/s: ByteGrad of {} bits"
    before = ("plain DDP", seconds["bagua_net plain"])
    for bits in (8, 4):
        yield Gain(what.format(bits), before, seconds[f"bagua_net ByteGrad {bits}"], "s", False, STEPS)


def _collectives() -> Iterator[Gain]:
    _, readings = collectives.load(COLLECTIVES)
    for nbytes in (64 * KIB, 64 * MIB):
        here = next(
            each
            for each in readings
            if (each["hosts"], each["ranks"], each["name"], each["bytes"]) == (1, 4, "all_reduce", nbytes)
        )
        ours, theirs = (median(here["sides"][side]) / 1000 for side in (collectives.OURS, collectives.THEIRS))
        what = f"PyTorch on CPUs, `all_reduce` of {size(nbytes)}, four ranks of one host"
        yield Gain(what, ("gloo", theirs), ours, "ms", False, COLLECTIVES)


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
