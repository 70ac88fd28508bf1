# SPDX-License-Identifier: MIT
"""`bagua-net bench compare`: two stored runs, a real one and what it might have been."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.package.bench_command import bench

pytestmark = pytest.mark.gate

Record = dict[str, Any]
_SIZES = (1 << 16, 1 << 20, 1 << 24)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run of one network, what depends on this machine replaced: two networks, three
    sizes, five rounds that differ by 8 %."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    done = bench("--transport", "bagua", "--max", "4", "--iters", "2", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    record: Record = json.loads(path.read_text())
    record["summary"] = []
    (row,) = record["results"]
    record["results"] = [
        {**row, "transport": name, "size": size, "rounds": [size * factor / 1e9 for factor in (1, 1.04, 0.98, 1.06, 1)]}
        for size in _SIZES
        for name in ("bagua", "nccl-socket")
    ]
    return record


def _compare(tmp_path: Path, before: Record, after: Record) -> subprocess.CompletedProcess[str]:
    files = [tmp_path / name for name in ("before.json", "after.json")]
    for file, record in zip(files, (before, after), strict=True):
        file.write_text(json.dumps(record))
    return bench("compare", *map(str, files))


def _changed(record: Record, change: Callable[[dict[str, Any]], float]) -> Record:
    """Each row's times, multiplied."""
    made = copy.deepcopy(record)
    for row in made["results"]:
        row["rounds"] = [seconds * change(row) for seconds in row["rounds"]]
    return made


def test_the_same_figures(tmp_path: Path, stored: Record) -> None:
    done = _compare(tmp_path, stored, stored)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "bagua: no clear difference from 64 KiB to 16 MiB.",
        "nccl-socket: no clear difference from 64 KiB to 16 MiB.",
    ]


@pytest.mark.quick
def test_one_network_is_slower_at_some_sizes(tmp_path: Path, stored: Record) -> None:
    after = _changed(stored, lambda row: 1.25 if row["transport"] == "bagua" and row["size"] >= 1 << 20 else 1.0)
    done = _compare(tmp_path, stored, after)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "bagua: no clear difference at 64 KiB; slower from 1 MiB to 16 MiB (0.80 × its speed before).",
        "nccl-socket: no clear difference from 64 KiB to 16 MiB.",
    ]


def test_less_than_the_spread_is_no_difference(tmp_path: Path, stored: Record) -> None:
    done = _compare(tmp_path, stored, _changed(stored, lambda row: 1.03))
    assert (done.returncode, done.stdout.count("no clear difference")) == (0, 2)


def test_faster(tmp_path: Path, stored: Record) -> None:
    done = _compare(tmp_path, stored, _changed(stored, lambda row: 0.5 if row["transport"] == "bagua" else 1.0))
    assert done.returncode == 0
    assert "bagua: faster from 64 KiB to 16 MiB (2.00 × its speed before)." in done.stdout


def test_all_are_slower_on_another_machine(tmp_path: Path, stored: Record) -> None:
    after = _changed(stored, lambda row: 2.0)
    after["machine"]["kernel"] = "another"
    after["summary"].append("Mind that this machine was busy: other programs took 1.3 of 2 processor cores.")
    after["environment"]["BAGUA_NET_NSTREAMS"] = "2"
    after["transports"]["bagua"] = "BaguaNet 9.9"
    said = _compare(tmp_path, stored, after).stdout
    assert "Every network is slower: look at the machine" in said
    assert "→ another" in said
    assert "after.json: Mind that this machine was busy" in said
    assert "BAGUA_NET_NSTREAMS unset → 2" in said
    assert f"bagua {stored['transports']['bagua']} → BaguaNet 9.9" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record["config"].update(op="broadcast"), "op is allreduce in "),
        (lambda record: record["config"].update(nranks=4), "nranks is 2 in "),
        (lambda record: record.update(format=99), "of another version, format 99"),
        (lambda record: record.pop("results"), "no file of `bagua-net bench --json`"),
        (lambda record: record["results"].clear(), "no network and size in common"),
    ],
)
def test_runs_that_cannot_be_compared(
    tmp_path: Path, stored: Record, change: Callable[[Record], object], said: str
) -> None:
    after = copy.deepcopy(stored)
    change(after)
    done = _compare(tmp_path, stored, after)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_none(tmp_path: Path, stored: Record) -> None:
    _compare(tmp_path, stored, stored)
    (tmp_path / "after.json").write_text("time 4 us\n")
    done = bench("compare", str(tmp_path / "before.json"), str(tmp_path / "after.json"))
    assert done.returncode == 1
    assert "after.json: no file of `bagua-net bench --json`" in done.stderr
