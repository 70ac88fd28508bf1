# SPDX-License-Identifier: MIT
"""`bagua-net bench calculate`: its arithmetic, the files that it takes a rate from, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.package.bench_command import QUICK, bench, results

ROOT = Path(__file__).resolve().parents[2]

#: Bytes a second of 10 Gbit/s, of which 1448 in 1538 are payload.
TEN_GBE = 1.25e9 * 1448 / 1538
#: Elements of 1 MiB of gradients, DDP's first bucket.
FIRST = 1 << 18


def calculated(tmp_path: Path, *options: str) -> dict[str, Any]:
    """What the file has, with its steps by algorithm."""
    file = tmp_path / "calculated.json"
    done = bench("calculate", *options, "--json", str(file))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(file.read_text())["calculated"]
    return {**found, "steps": {step["algorithm"]: step for step in found["steps"]}}


def test_one_bucket_takes_the_ring_s_time(tmp_path: Path) -> None:
    options = ["--parameters", str(FIRST), "--ranks", "4", "--rate", "10G", "--latency", "100"]
    steps = calculated(tmp_path, *options)["steps"]
    share = FIRST // 4
    sent = {
        "GradientAllReduce()": 6 * share * 4,
        'GradientAllReduce(wire="bfloat16")': 6 * share * 2,
        "ByteGrad()": 6 * (share + share // 512 * 8),
        "ByteGrad(bits=4)": 6 * (share // 2 + share // 128 * 8),
        "QAdam(bits=1)": 6 * (share // 8 + share // 512 * 4),
    }
    sent["DiLoCo()"] = sent["ByteGrad()"]
    assert list(steps) == list(sent)
    for name, nbytes in sent.items():
        rounds = 30 if name == "DiLoCo()" else 1
        assert steps[name]["sent_bytes"] == pytest.approx(nbytes / rounds)
        assert steps[name]["network_s"] == pytest.approx((6 * 100e-6 + nbytes / TEN_GBE) / rounds)
        assert steps[name]["efficiency"] is None


@pytest.mark.gate
def test_backward_hides_all_buckets_but_the_last(tmp_path: Path) -> None:
    """Two buckets, of 1 and 25 MiB. Of a short backward the second one's part hides of the first one what it takes."""
    options = ["--parameters", str(26 * FIRST), "--ranks", "2", "--rate", "10G", "--latency", "0"]
    first_s = (1 << 20) / TEN_GBE
    for compute_ms, hidden_s in ((600, first_s), (0.6, 0.0006 * 2 / 3 * 25 / 26)):
        steps = calculated(tmp_path, *options, "--compute", str(compute_ms))["steps"]
        plain, diloco = steps["GradientAllReduce()"], steps["DiLoCo()"]
        assert plain["network_s"] == pytest.approx(26 * first_s)
        assert plain["hidden_s"] == pytest.approx(hidden_s)
        assert plain["step_s"] == pytest.approx(compute_ms / 1e3 + 26 * first_s - hidden_s)
        assert plain["efficiency"] == pytest.approx(compute_ms / 1e3 / plain["step_s"])
        assert diloco["hidden_s"] == 0


@pytest.mark.gate
def test_without_a_latency_it_is_nccl_s(tmp_path: Path) -> None:
    options = ["--model", "gpt2", "--rate", "1G"]
    default, named = (calculated(tmp_path, *options, *more) for more in ([], ["--latency", "14"]))
    assert default == named


def test_the_table_is_labelled_and_has_what_the_file_has(tmp_path: Path) -> None:
    options = ["--model", "resnet50", "--ranks", "16", "--rate", "10G", "--compute", "120"]
    steps = calculated(tmp_path, *options)["steps"]
    lines = bench("calculate", *options).stdout.splitlines()
    assert lines[0].startswith("# Calculated, not measured: a step of resnet50, 25,557,032 parameters in ")
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[0] for row in rows] == list(steps)
    for row, step in zip(rows, steps.values(), strict=True):
        times = [step[name] * 1e3 for name in ("network_s", "hidden_s", "step_s")]
        assert [*map(float, row[1:])] == pytest.approx([step["sent_bytes"] / 1e6, *times, step["efficiency"]], rel=1e-3)


@pytest.mark.gate
def test_the_page_has_the_command_s_own_lines() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    found = re.search(r"^```console\n\$ bagua-net bench (calculate [^\n]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert bench(*shlex.split(found[1])).stdout == found[2]


# ---- measured rates ----


@pytest.mark.gate
def test_the_rate_of_a_run_is_its_highest_bus_bandwidth(tmp_path: Path) -> None:
    record = results(tmp_path, "--transport", "bagua", "--codec", "u8", "--max", "1M", "--factor", "64", *QUICK)
    file = tmp_path / "record.json"
    rates = {row["busbw_gbps"] * 1e9 for row in record["results"] if row["transport"] == "bagua"}
    link = calculated(tmp_path, "--model", "gpt2", "--measured", str(file))["link"]
    assert link["bytes_per_s"] == pytest.approx(max(rates))
    assert link["source"].endswith(f"measured: the best size of bagua {record['where']} ({file})")
    record["results"] = [row for row in record["results"] if row["transport"] != "bagua"]
    file.write_text(json.dumps(record))
    done = bench("calculate", "--model", "gpt2", "--measured", str(file))
    assert (done.returncode, done.stderr) == (1, f"bagua-net: {file}: no row of bagua or nccl+bagua or torch+bagua\n")


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        "[1]",
        '[{"name": "a → b: rate", "bytes_per_second": 0}]',
        '[{"name": "a → b: rate", "bytes_per_second": -5}]',
        '[{"name": "a → b: rate", "bytes_per_second": "12"}]',
        '{"format": 1}',
        "3",
    ],
)
def test_a_file_without_a_rate_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    done = bench("calculate", "--model", "gpt2", "--measured", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bagua-net: {file}: no ")
    assert len(done.stderr.splitlines()) == 1


# ---- refused options ----


@pytest.mark.gate
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rate", "10G"], "name one model"),
        (["--rate", "10G", "--model", "gpt2", "--parameters", "1G"], "name one model"),
        (["--model", "gpt2"], "name one rate"),
        (["--model", "gpt2", "--rate", "fast"], "'fast' is no number of 1 or more; write for example 10G"),
        (["--model", "gpt2", "--rate", "0G"], "'0G' is no number of 1 or more"),
        (["--model", "gpt2", "--rate", "10"], "--rate 10 is 10 bit/s; for 10 Gbit/s write 10G"),
        (["--model", "gpt2", "--rate", "10G", "--ranks", "1"], "'--ranks'"),
        (["--model", "gpt2", "--rate", "10G", "--latency", "-1"], "'--latency'"),
        (["--model", "gpt2", "--rate", "10G", "--compute", "0"], "'--compute'"),
        (["--model", "gpt2", "--rate", "10G", "--latency", "inf"], "finite"),
        (["--parameters", "999999G", "--rate", "10G"], "more than"),
        (["--model", "gpt2", "--measured", "/nowhere.json"], "does not exist"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_the_reason(arguments: list[str], reason: str) -> None:
    done = bench("calculate", *arguments, COLUMNS="500")
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stdout == ""
