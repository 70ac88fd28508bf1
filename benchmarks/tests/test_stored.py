# SPDX-License-Identifier: MIT
"""The stored results are whole, and their tables are what --report prints. Run: pytest benchmarks"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.report import markdown, results

RESULTS = ROOT / "benchmarks" / "results"
STORED = sorted(RESULTS.glob("*.jsonl"))
LINES = 2000

needs_results = pytest.mark.skipif(not STORED, reason="the stored results are not part of this tree")


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_readings(path: Path) -> None:
    assert path.with_suffix(".md").read_text() == markdown.render(results.load(path))


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_reading_is_missing(path: Path) -> None:
    stored = results.load(path)
    assert isinstance(stored.settings["pairs"], int)
    assert stored.settings.get("cells", len(stored.cells)) == len(stored.cells)
    assert markdown._missing(stored) == 0


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_file_is_stored_as_it_is_written(path: Path) -> None:
    assert "".join(results.load(path).lines()) == path.read_text()


@needs_results
def test_results_stay_small() -> None:
    files = [file for file in RESULTS.iterdir() if file.suffix in (".jsonl", ".md", ".svg")]
    assert sum(len(file.read_text().splitlines()) for file in files) < LINES
    assert {file.stem for file in files} == {file.stem for file in STORED}, "tables or a picture without readings"


def test_the_format_before_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{\n "format": 1, "started": "2026-01-01T00:00:00+00:00", "command": "", "machine": {}, "settings": {},\n'
        ' "cells": {"S1 | veth | 2 | 64": {"cell": {"scenario": "S1", "path": "veth", "connections": 2, "size": 64},\n'
        '  "limit": null, "choices": {"bare": "x"}, "runs": [{"side": "bare", "choice": "x", "pair": 0, "seed": 0,\n'
        '  "value": 1.5, "per_rank": [1.0, 2.0]}]}}}\n'
    )
    record = results.load(tmp_path / "a.json").cells["S1 | veth | 2 | 64"]
    assert record.choices == {"raw": "x"}
    assert record.values("raw") == {0: 1.5}
