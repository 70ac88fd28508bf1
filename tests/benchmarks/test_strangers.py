# SPDX-License-Identifier: MIT
"""The benchmark of strangers: a small run, and what its report makes of windows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.report import jsonl
from benchmarks.strangers import report
from tests.benchmarks.support import measure, needs_namespaces


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path, loops: Path) -> None:
    output = tmp_path / "small.jsonl"
    words = ["--quick", "--build", str(loops.parent), "--plugin", str(plugin)]
    done = measure("strangers", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, windows = jsonl.load(output)
    assert [each["pair"] for each in windows] == [0, 0, 1, 1]
    assert [each["strangers_per_s"] > 0 for each in windows] == [True, False, False, True]
    assert all(each["mb_per_s"] > 1 for each in windows)
    assert output.with_suffix(".md").read_text() == report.render(head, windows)


def test_stored_tables_are_those_of_the_readings() -> None:
    for path in sorted((ROOT / "benchmarks" / "results" / "strangers").glob("*.jsonl")):
        assert path.with_suffix(".md").read_text() == report.render(*jsonl.load(path)), path.name


def test_each_pair_has_a_ratio_whichever_was_first() -> None:
    windows = [
        {"pair": 0, "mb_per_s": 90.0, "strangers_per_s": 1000},
        {"pair": 0, "mb_per_s": 100.0, "strangers_per_s": 0},
        {"pair": 1, "mb_per_s": 50.0, "strangers_per_s": 0},
        {"pair": 1, "mb_per_s": 49.0, "strangers_per_s": 900},
    ]
    assert report.ratios(windows) == [0.9, 0.98]
