# SPDX-License-Identifier: MIT
"""The figures of the README and of docs/performance.md are those of stored results, and follow from their rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.front import figures, page, picture, tables
from benchmarks.report.figures import number

_FACTOR = re.compile(r"(?P<figure>\d+(?:\.\d+)?) (?:GB/s|µs|ms|s)\b")


@pytest.mark.parametrize("path", page.BLOCKS, ids=lambda path: path.name)
def test_the_page_has_what_was_stored(path: Path) -> None:
    assert path.read_text() == page.with_figures(path), "write it again: python3 -m benchmarks front-page"


def test_a_gain_follows_from_its_row() -> None:
    rows = [line for line in figures.table().splitlines() if "**" in line]
    assert rows
    for row in rows:
        before, after = (float(found["figure"]) for found in _FACTOR.finditer(row.split("|", 2)[2]))
        gain = float(re.findall(r"\*\*([\d.]+) ×", row)[0])
        faster = "GB/s" in row
        assert gain == pytest.approx(after / before if faster else before / after, abs=0.05 if gain >= 2 else 0.005)


def test_each_figure_is_the_median_of_its_runs() -> None:
    """Beside the code that writes the pages: straight from the file."""
    stored = figures.NCCL.read_text().splitlines()
    (row,) = [
        line
        for line in stored
        if '"scenario": "S12"' in line
        and '"classes_mbits": [1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000]' in line
        and '"size": 16777216' in line
        and '"ranks"' not in line
        and '"op"' not in line
    ]
    values = sorted(float(found) for found in re.findall(r'"side": "ours"[^}]*?"value": ([\d.]+)', row))
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    assert f"| {number(median)} GB/s [" in figures.table()


def test_the_pictures_draw_the_stored_run() -> None:
    """In both colours, every size of both networks."""
    for theme in picture.THEMES:
        drawn = page.picture_path(theme).read_text()
        for title, records in page.networks().items():
            assert title in drawn
            assert records


def test_no_cell_of_the_tables_is_empty() -> None:
    for content in (tables.nccl(), tables.training(), tables.calls(), tables.whole_steps()):
        assert "–" not in re.sub(r"\[[^]]*\]", "", content)
