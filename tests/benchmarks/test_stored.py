# SPDX-License-Identifier: MIT
"""The stored results are whole, cited, and their tables are what --report prints. Run: pytest benchmarks"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.report import markdown, results

RESULTS = ROOT / "benchmarks" / "results"
STORED = sorted(RESULTS.glob("*.jsonl"))
ALL_STORED = sorted(RESULTS.rglob("*.jsonl"))
LINES = 4400

needs_results = pytest.mark.skipif(not STORED, reason="the stored results are not part of this tree")


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_readings(path: Path) -> None:
    assert path.with_suffix(".md").read_text() == markdown.render(results.load(path))


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_reading_is_missing(path: Path) -> None:
    stored = results.load(path)
    assert not isinstance(stored.settings["pairs"], str)
    assert stored.settings.get("cells", len(stored.cells)) == len(stored.cells)
    assert markdown._missing(stored) == 0


@needs_results
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_file_is_stored_as_it_is_written(path: Path) -> None:
    assert "".join(results.load(path).lines()) == path.read_text()


@needs_results
def test_results_stay_small() -> None:
    files = [file for file in RESULTS.rglob("*") if file.suffix in (".jsonl", ".md", ".svg")]
    assert sum(len(file.read_text().splitlines()) for file in files) < LINES
    readings = {file.with_suffix("") for file in ALL_STORED}
    assert {file.with_suffix("") for file in files} == readings, "tables or a picture without readings"


@needs_results
@pytest.mark.parametrize("path", ALL_STORED, ids=lambda path: path.stem)
def test_a_document_cites_it(path: Path) -> None:
    documents = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"]
    cited = f"results/{path.relative_to(RESULTS).with_suffix('')}"
    assert any(cited in document.read_text() for document in documents)
