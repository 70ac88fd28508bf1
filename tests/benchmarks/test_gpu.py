# SPDX-License-Identifier: MIT
"""The GPU benchmark up to the GPU: its arithmetic, its tables, and a run on host memory. Run: pytest benchmarks"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bagua_net._bench.workload.result import Row
from bagua_net._errors import BaguaNetError
from benchmarks import ROOT
from benchmarks.gpu import allreduce, gpus
from benchmarks.report import markdown, results
from benchmarks.run.scenarios import KIB, MIB, Cell

GPU = {"name": "a GPU", "memory_mib": 81559, "driver": "580.1"}


def _row(rounds: list[float], wrong: int = 0) -> Row:
    return Row("", "allreduce", 4, 8 * MIB, 2 * MIB, "float32", "sum", "nccl", rounds, 3, wrong, rounds)


def _results(*records: results.CellRecord) -> results.Results:
    settings: dict[str, Any] = {"congestion_control": "bbr", "nccl_version": "2.30.7", "plugin_version": "0.1.0"}
    settings |= {"torch_version": "2.11.0", "plugin_settings": {}, "sharing": "time slices", "pairs": 2}
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18", "gpus": [GPU]}
    rows = {record.cell.key: record for record in records}
    return results.Results("2026-01-01T00:00:00+00:00", "gpu", computer, settings, rows)


def _record(nbytes: int, own: float, other: float) -> results.CellRecord:
    record = results.CellRecord(Cell("GPU", "loopback", 0, nbytes, ranks=4), None)
    for side, value in (("ours", own), ("nccl", other)):
        record.runs.append(results.Run(side, "", 0, 0, value, [], details={"us": 1 / value}))
    return record


# ---- figures and tables ----


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    runs = allreduce.runs_of(_row([0.001, 0.002]), "ours", 0.0)
    assert [run.value for run in runs] == pytest.approx([8 * MIB * 1.5 / 1e6, 8 * MIB * 1.5 / 2e6])
    assert [run.details["us"] for run in runs] == pytest.approx([1000, 2000])
    assert [run.pair for run in runs] == [0, 1]


def test_a_wrong_result_is_no_reading() -> None:
    (run,) = allreduce.runs_of(_row([0.001], wrong=3), "ours", 0.0)
    assert run.value is None
    assert "3 elements are wrong" in run.error


def test_the_table_names_the_gpu_and_shows_small_sizes_as_times() -> None:
    text = markdown.render(_results(_record(KIB, 0.01, 0.02), _record(MIB, 4.0, 2.0)))
    assert "memory of a GPU (81559 MiB, driver 580.1), shared by time slices" in text
    assert "NCCL 2.30.7, torch 2.11.0, bagua_net 0.1.0" in text
    assert "| loopback | 4 | 1 KiB | 50.0 µs | 100 µs | **0.50** |" in text
    assert "| loopback | 4 | 1 MiB | 2.00 | 4.00 | 2.00 |" in text


def test_what_nvidia_smi_prints() -> None:
    text = "NVIDIA H100 80GB HBM3, 81559, 580.159.04\nNVIDIA L4, 23034, 580.159.04\n"
    assert gpus.parse(text) == [
        {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "driver": "580.159.04"},
        {"name": "NVIDIA L4", "memory_mib": 23034, "driver": "580.159.04"},
    ]


def test_the_service_is_there_where_its_pipe_is(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert gpus.sharing(environment) == "time slices"
    (tmp_path / "control").touch()
    assert gpus.sharing(environment) == "the multi-process service"


# ---- the command ----


def _program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "BAGUA_NET_N"))}
    command = [sys.executable, "-m", "benchmarks", "gpu", *words]
    return subprocess.run(command, env=kept | environment, cwd=ROOT, capture_output=True, text=True, timeout=120)


def _on_the_cpu(output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    from bagua_net._bench.transports import nccl_net

    try:
        nccl_net.socket_version()
    except BaguaNetError as error:
        pytest.skip(str(error))
    return _program("--device", "cpu", "--ranks", "2", "--output", str(output), *words)


@pytest.mark.parametrize("words", [("--ranks", "1"), ("--min", "0"), ("--device", "tpu")])
def test_options_that_make_no_sense(words: tuple[str, ...]) -> None:
    done = _program(*words)
    assert done.returncode == 2
    assert "error: argument" in done.stderr


def test_sizes_that_make_no_sense() -> None:
    done = _program("--min", "1M", "--max", "1K")
    assert done.returncode == 2
    assert "is below the smallest" in done.stderr


@pytest.mark.nightly
def test_without_cuda_it_says_so_in_one_line(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    done = _program("--output", str(tmp_path / "a.jsonl"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "torch" in done.stderr
    assert not list(tmp_path.iterdir())


def test_both_sides_are_read_stored_and_shown(tmp_path: Path) -> None:
    done = _on_the_cpu(tmp_path / "a.jsonl", "--max", "64K", "--factor", "128", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    stored = results.load(tmp_path / "a.jsonl")
    assert [record.cell.size for record in stored.cells.values()] == [8, 1024]
    for record in stored.cells.values():
        assert sorted(record.values("ours")) == sorted(record.values("nccl")) == [0, 1, 2]
    assert stored.settings["nccl_version"]
    assert (tmp_path / "a.md").read_text() == markdown.render(stored)
    again = _program("--report", str(tmp_path / "a.jsonl"))
    assert again.stdout == markdown.render(stored) + "\n"


def test_when_the_time_is_over_it_keeps_what_it_has(tmp_path: Path) -> None:
    done = _on_the_cpu(tmp_path / "a.jsonl", "--max", "64K", "--rounds", "1000000", "--seconds", "8")
    assert done.returncode == 1, done.stderr
    assert "the time was over" in done.stderr
    assert results.load(tmp_path / "a.jsonl").settings["failures"]
    assert (tmp_path / "a.md").is_file()


def test_results_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("kept")
    done = _program("--device", "cpu", "--output", str(tmp_path / "a.jsonl"))
    assert done.returncode == 2
    assert (tmp_path / "a.jsonl").read_text() == "kept"
