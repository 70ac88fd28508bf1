# SPDX-License-Identifier: MIT
"""The benchmark of rings: a small run, and its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import jsonl
from benchmarks.rings import report
from tests.benchmarks.support import measure, needs_namespaces


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path, loops: Path) -> None:
    output = tmp_path / "small.jsonl"
    words = ["--hosts", "3", "--seconds", "3", "--slow", "1,2", "--build", str(loops.parent), "--plugin", str(plugin)]
    done = measure("rings", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, readings = jsonl.load(output)
    assert [each["side"] for each in readings] == [report.REFERENCE, "bagua_net", "the second job"]
    assert all(len(each["mb_per_s"]) == 3 for each in readings)
    # A lone flow would carry 0.75 MB/s at the most.
    assert max(readings[0]["mb_per_s"]) > 1
    assert output.with_suffix(".md").read_text() == report.render(head, readings)


def test_full_rate_is_reached_when_it_stays() -> None:
    assert report.full_after([1, 9, 2, 9, 9, 9], 9) == 3
    assert report.full_after([9, 9], 9) == 0
    assert report.full_after([1, 9], 9) is None
