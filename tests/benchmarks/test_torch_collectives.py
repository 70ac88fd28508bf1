# SPDX-License-Identifier: MIT
"""The benchmark of torch.distributed's operations: a small run, its report, the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.collectives import report
from benchmarks.report import jsonl
from benchmarks.report.jsonl import Reading
from tests.benchmarks.support import measure, needs_namespaces

STORED = sorted((ROOT / "benchmarks" / "results" / "torch-collectives").glob("*.jsonl"))


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "small.jsonl"
    words = ["--pairs", "1", "--ranks", "2", "--hosts", "2", "--sizes", "4096", "--parts", "calls,busy"]
    done = measure("torch-collectives", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, readings = jsonl.load(output)
    names = {reading["name"] for reading in readings}
    assert {"all_reduce", "scatter, list", "isend and irecv around", "barrier"} <= names
    assert all(report.OURS in reading["sides"] for reading in readings), "every operation works here"
    assert sum(report.THEIRS in reading["sides"] for reading in readings) > len(readings) / 2
    assert output.with_suffix(".md").read_text() == report.render(head, readings)


def _reading(ours: list[float], theirs: list[float]) -> Reading:
    return {
        "hosts": 1,
        "ranks": 2,
        "name": "all_reduce",
        "bytes": 1 << 20,
        "sides": {"bagua_net": ours, "gloo": theirs},
    }


def test_ratios_are_taken_within_pairs() -> None:
    assert report.ratio(_reading([1.0, 2.0, 4.0], [2.0, 2.0, 16.0])) == 2.0
    assert report.ratio(_reading([1.0], [])) is None


def test_a_loss_is_bold() -> None:
    head = {
        "started": "",
        "command": "",
        "machine": {"cpu": "", "cores": 2, "kernel": ""},
        "settings": {"torch": "", "bagua_net": "", "pairs": 1},
    }
    assert "| all_reduce | **0.50** (2) |" in report.render(head, [_reading([2.0], [1.0])])
    assert "0 of 1 rows" in report.render(head, [_reading([2.0], [1.0])])


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_readings(path: Path) -> None:
    head, readings = jsonl.load(path)
    assert path.with_suffix(".md").read_text() == report.render(head, readings)
    assert jsonl.text(head, readings) == path.read_text()
