# SPDX-License-Identifier: MIT
"""The benchmark of repairs: a small run, and what its report makes of rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.repairs import report
from benchmarks.report import jsonl
from tests.benchmarks.support import measure, needs_namespaces

_BEFORE = [10.0] * 100


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path, loops: Path) -> None:
    output = tmp_path / "small.jsonl"
    words = ["--times", "1", "--build", str(loops.parent), "--plugin", str(plugin)]
    done = measure("repairs", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, readings = jsonl.load(output)
    assert [(each["streams"], each["reset"]) for each in readings] == [(8, 1), (8, 8), (1, 1)]
    assert all(len(each["mb_per_s"]) == 300 and sum(each["mb_per_s"]) > 0 for each in readings)
    assert output.with_suffix(".md").read_text() == report.render(head, readings)


def test_the_bytes_between_two_samples_are_spread_over_them() -> None:
    samples = [(number * 0.02, number * 200_000) for number in range(400)]
    assert report.bins(samples, 3.0) == [10.0] * 300


def test_full_rate_is_over_some_time() -> None:
    assert report.full_after_ms([*_BEFORE, *[0.0] * 10, *[10.0] * 190]) == 100
    assert report.full_after_ms([*_BEFORE, 0.0, 10.0, 0.0, *[10.0] * 197]) == 30
    assert report.full_after_ms([*_BEFORE, *[5.0] * 200]) == float("inf")


def test_what_is_lost_is_a_time() -> None:
    assert report.lost_ms([*_BEFORE, *[0.0] * 10, *[10.0] * 190]) == pytest.approx(100)
    assert report.lost_ms([*_BEFORE, *[5.0] * 10, *[10.0] * 190]) == pytest.approx(50)
