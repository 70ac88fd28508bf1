# SPDX-License-Identifier: MIT
"""The benchmark of the algorithms' accuracy: a small run, its report, the stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import ROOT
from benchmarks.accuracy import report
from benchmarks.report import jsonl
from benchmarks.report.jsonl import Reading
from tests.benchmarks.support import measure

STORED = sorted((ROOT / "benchmarks" / "results" / "convergence").glob("*.jsonl"))


@pytest.mark.nightly
def test_a_small_run(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "small.jsonl"
    words = ["--seeds", "1", "--steps", "4", "--tasks", "characters", "--rows", "8 bits"]
    done = measure("convergence", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, readings = jsonl.load(output)
    sent = {(each["backend"], each["row"]): each["runs"][0]["megabytes"] for each in readings}
    for backend in ("bagua_net", "gloo"):
        assert sent[backend, "ByteGrad, 8 bits"] > sent[backend, "exact"] == 0, "no codes were sent"
    assert output.with_suffix(".md").read_text() == report.render(head, readings)


def _reading(row: str, *accuracies: float, equal: bool = True) -> Reading:
    runs = [{"accuracy": each, "loss": 1.0, "megabytes": 1.0, "equal": equal} for each in accuracies]
    place = {"task": "digits", "backend": "gloo", "optimizer": "sgd", "against": "sgd"}
    return {**place, "row": row, "points": 0.5, "equal": True, "runs": runs}


def _tables(*readings: Reading) -> str:
    head: dict[str, Any] = {
        "started": "",
        "command": "",
        "machine": {"cpu": "", "cores": 2, "kernel": "", "python": ""},
        "settings": {"torch": "", "bagua_net": "", "ranks": 4, "seeds": 2, "steps": {"digits": 1}},
    }
    return report.render(head, readings)


def test_points_are_taken_within_pairs() -> None:
    exact, other = _reading("exact", 90.0, 80.0), _reading("other", 90.5, 79.0)
    assert report.gains(other, [exact, other]) == [0.5, -1.0]
    assert "| other | sgd | 84.75 | -0.25 [-1.00 to +0.50] | 0.5 | 1.00 |" in _tables(exact, other)


@pytest.mark.parametrize(
    "other", [_reading("other", 89.0, 79.8), _reading("other", 90.0, 80.0, equal=False)], ids=["accuracy", "ranks"]
)
def test_a_row_beyond_its_bounds_is_bold(other: Reading) -> None:
    text = _tables(_reading("exact", 90.0, 80.0), other)
    assert "| **" in text
    assert "0 of 1 rows" in text


def test_the_tables_are_those_of_the_readings() -> None:
    for path in STORED:
        head, readings = jsonl.load(path)
        assert path.with_suffix(".md").read_text() == report.render(head, readings), path.name
        assert jsonl.text(head, readings) == path.read_text(), path.name
