# SPDX-License-Identifier: MIT
"""The benchmark of the compressed allreduce: a small run, its report, the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.codecs import report, speed
from benchmarks.report.jsonl import Reading
from tests.benchmarks.support import measure, needs_namespaces


@pytest.mark.nightly
@needs_namespaces
def test_a_small_run(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("torch")  # of which one of the sides is
    output = tmp_path / "small.jsonl"
    words = ["--rounds", "2", "--sizes", "64K,1M", "--networks", "1000"]
    done = measure("codecs", *words, "--output", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, codecs, readings = report.load(output)
    assert len(readings) == 2
    for reading in readings:
        assert set(reading["us"]) == {report.PLAIN, *report.COMPRESSED}
        assert all(len(values) == 2 for values in reading["us"].values())
    assert len(codecs) == 2 * 3
    assert done.stdout == output.with_suffix(".md").read_text() == report.render(head, codecs, readings)


def test_the_speed_of_codecs_is_measured() -> None:
    found = speed.measure(512, 2)
    assert {name.split(": ")[1] for name in found} == {"encode", "decode", "decode and add"}
    assert all(value > 0 for values in found.values() for value in values)


def _reading(plain: list[float], codes: list[float]) -> Reading:
    us = {report.PLAIN: plain, **dict.fromkeys(report.COMPRESSED, codes)}
    return {"place": "2 ranks, loopback", "bytes": 1 << 20, "us": us, "processor_us": us}


def test_ratios_are_taken_within_rounds() -> None:
    reading = _reading([2.0, 2.0, 16.0], [1.0, 2.0, 4.0])
    assert report.ratios(reading, "bagua+u8") == [2.0, 1.0, 4.0]
    assert report.ratios(reading, "bagua+u8", "processor_us") == [0.5, 1.0, 0.25]


def test_a_loss_is_bold() -> None:
    head = {
        "started": "",
        "command": "",
        "machine": {"cpu": "", "cores": 2, "kernel": ""},
        "settings": {"congestion_control": "", "bagua_net": "", "rounds": 1, "block": 512},
    }
    text = report.render(head, {"u8: encode": [2.0]}, [_reading([1.0], [2.0])])
    assert f"| 1 MiB | 1 |{' **0.50** [0.50–0.50] |' * 4}{' 2.00 |' * 4}\n" in text
    assert "| u8: encode | **2.00** [2.00–2.00] |" in text


def test_the_tables_are_those_of_the_readings() -> None:
    for path in (ROOT / "benchmarks" / "results" / "codecs").glob("*.jsonl"):
        head, codecs, readings = report.load(path)
        assert path.with_suffix(".md").read_text() == report.render(head, codecs, readings), path
        assert report.lines(head, codecs, readings) == path.read_text(), path
