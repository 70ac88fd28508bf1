# SPDX-License-Identifier: MIT
"""Draws the README's picture and writes its figures and those of docs/performance.md, from stored results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import ROOT, command_line
from benchmarks.front import figures, picture, tables
from benchmarks.report import chart, results
from benchmarks.report.results import CellRecord

README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "images"
#: Page → name of a block in it → what it holds.
BLOCKS: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    README: {"figures": figures.table},
    PERFORMANCE: {
        "tables": tables.nccl,
        "steps": tables.training,
        "collectives": tables.calls,
        "wholes": tables.whole_steps,
    },
}


def picture_path(theme: str) -> Path:
    return PICTURES / f"nccl-allreduce-{theme}.svg"


def with_figures(page: Path) -> str:
    """The page with what the stored results say today."""
    text = page.read_text()
    for name, content in BLOCKS[page].items():
        begin, end = f"<!-- {name}: python3 -m benchmarks front-page -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}{content()}\n{end}{rest.split(end)[1]}"
    return text


def networks() -> dict[str, list[CellRecord]]:
    """Panel of the picture → its rows."""
    stored = results.load(figures.NCCL)
    return picture.panels_of(
        {
            "eight paths of 1 Gbit/s": figures.nccl_cells(stored, figures.CLASSES),
            "one path without a limit": figures.nccl_cells(stored, ()),
        }
    )


def main(argv: Sequence[str]) -> int:
    command_line.parser("front-page", __doc__).parse_args(argv)
    if not chart.available():
        print("front-page: needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    for page in BLOCKS:
        page.write_text(with_figures(page))
    for theme in picture.THEMES:
        picture.write(picture_path(theme), theme, networks())
    return 0
