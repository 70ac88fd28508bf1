# SPDX-License-Identifier: MIT
"""The page's table of measured steps by calculated ones is that of the stored result."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from benchmarks import ROOT
from tests.package.bench_command import bench

pytestmark = pytest.mark.gate

PAGE = ROOT / "docs" / "performance.md"
STORED = ROOT / "benchmarks" / "results" / "algorithms" / "2026-11-28.jsonl"

RATES = {"100 Mbit/s": "100M", "1 Gbit/s": "1G", "10 Gbit/s": "10G"}
ALGORITHMS = {
    "plain": "GradientAllReduce()",
    "bf16": 'GradientAllReduce(wire="bfloat16")',
    "ByteGrad 8": "ByteGrad()",
    "ByteGrad 4": "ByteGrad(bits=4)",
}
#: The measured steps have a backward pass of 300 ms and nothing else: two thirds of such a computation.
COMPUTE_S, REST_S = 0.45, 0.15


def _measured() -> dict[tuple[str, str, str], float]:
    """Seconds, by model, network and algorithm."""
    readings = defaultdict(list)
    for reading in map(json.loads, STORED.read_text().splitlines()):
        backend, _, way = reading.get("side", "").partition(" ")
        if backend == "bagua_net" and way in ALGORITHMS:
            readings[reading["model"], reading["network"], ALGORITHMS[way]].append(reading["seconds"])
    return {cell: median(seconds) for cell, seconds in readings.items()}


def _calculated(model: str, network: str, file: Path) -> dict[str, float]:
    options = ["--model", model.lower(), "--rate", RATES[network], "--compute", str(COMPUTE_S * 1e3)]
    done = bench("calculate", *options, "--json", str(file))
    assert done.returncode == 0, done.stderr
    return {row["algorithm"]: row["step_s"] - REST_S for row in json.loads(file.read_text())["calculated"]["steps"]}


@pytest.mark.skipif(not STORED.exists(), reason="the stored results are not part of this tree")
def test_the_table_of_measured_steps_by_calculated_ones(tmp_path: Path) -> None:
    measured = _measured()
    models = sorted({model for model, _, _ in measured})
    steps = {(model, network): _calculated(model, network, tmp_path / "f") for model in models for network in RATES}
    rows = []
    for name in ALGORITHMS.values():
        by_network = (
            [measured[model, network, name] / steps[model, network][name] for model in models] for network in RATES
        )
        rows.append(f"| `{name}` | {' | '.join(f'{min(each):.2f}–{max(each):.2f}' for each in by_network)} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"the rows should be:\n{table}"
