# SPDX-License-Identifier: MIT
"""``bagua-net bench nccl``: NCCL's own code on emulated GPUs, over the plugin and over other networks."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from bagua_net import plugin_path
from bagua_net._bench.workload.ops import OPS
from tests.package import nccl_here
from tests.package.bench_command import QUICK, SECONDS, bench, ended, endless, environment, free_port, results, start
from tests.support import nccl_wheels
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

BOTH = ["nccl+bagua", "nccl"]
# 4 B is done at once; 64 MiB would warm up for minutes, in which a rank talks to no process but the other rank.
ENDLESS = ["--max", "64M", "--factor", "16777216", "--warmup", "2000", "--iters", "20"]


def nccl() -> list[str]:
    return named(nccl_here.library())


def named(library: Path) -> list[str]:
    return ["nccl", "--libnccl", str(library)]


def says(record: dict[str, object], name: str) -> list[str]:
    evidence = record["evidence"]
    assert isinstance(evidence, dict)
    lines: list[str] = evidence[name]
    return lines


# ---- measuring ----


@pytest.mark.nightly
@pytest.mark.parametrize("op", variants("reduce_scatter", nightly=[op for op in OPS if op != "reduce_scatter"]))
def test_every_operation_is_right_over_both_networks(tmp_path: Path, op: str) -> None:
    options = [*nccl(), "--op", op, "--ranks", "3", "--min", "12", "--max", "100K", "--factor", "90", *QUICK]
    record = results(tmp_path, *options)
    assert [row["transport"] for row in record["results"]] == BOTH * 3
    assert says(record, "nccl+bagua")[0] == "Using network BaguaNet"
    assert says(record, "nccl")[0] == "Using network Socket"
    assert all("coll channels" in says(record, name)[1] for name in BOTH)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "redop", "ranks"),
    variants(
        ("bfloat16", "sum", "3"),
        nightly=[
            ("float32", "prod", "3"),
            ("float32", "avg", "4"),
            ("int8", "avg", "3"),
            ("uint8", "sum", "2"),
            ("int32", "prod", "2"),
            ("int64", "max", "2"),
            ("float16", "avg", "2"),
            ("float64", "min", "2"),
        ],
    ),
)
def test_every_type_and_reduction_is_right(tmp_path: Path, dtype: str, redop: str, ranks: str) -> None:
    options = [*nccl(), "--ranks", ranks, "--dtype", dtype, "--redop", redop, "--transport", "nccl+bagua"]
    results(tmp_path, *options, "--min", "5", "--max", "500K", "--factor", "100", *QUICK)


@pytest.mark.quick
def test_the_output_says_what_it_is_and_what_nccl_chose() -> None:
    run = bench(*nccl(), "--min", "64", "--max", "1M", "--factor", "16384", *QUICK)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    lines = run.stdout.splitlines()
    assert lines[0].endswith("between 2 ranks on this machine, over loopback, without a GPU")
    assert "this processor plays the GPU's part, so times say nothing about a GPU" in lines[1]
    assert "# nccl+bagua says: Using network BaguaNet" in lines
    assert "# nccl says: Using network Socket" in lines
    heading = next(line for line in lines if "busbw" in line)
    assert heading.split() == ["#", "size", "count", "type", "redop", "transport", "time", "algbw", "busbw", "#wrong"]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[4] for row in rows] == BOTH * 2
    assert all(row[-1] == "0" for row in rows)
    for name in BOTH:
        assert f"# {name} chose RING/LL at 64 B, RING/SIMPLE at 1 MiB." in lines


@pytest.mark.parametrize(
    ("version", "chosen"),
    variants(nightly=[("2.30.7", "RING/LL"), ("2.18.3", ""), ("2.21.5", "RING/LL")]),
)
def test_releases_that_take_a_plugin_by_name_and_by_path(tmp_path: Path, version: str, chosen: str) -> None:
    record = results(tmp_path, *named(nccl_wheels.library(version)), "--max", "4", *QUICK)
    assert record["transports"]["nccl"] == f"NCCL {version} with its own Socket network"
    assert [row["chosen"] for row in record["results"]] == [chosen] * 2
    assert says(record, "nccl+bagua")[0] == "Using network BaguaNet"


@pytest.mark.nightly
@pytest.mark.parametrize("version", variants("2.30.7", nightly=["2.18.3"]))
def test_another_plugin_is_a_third_network(tmp_path: Path, version: str) -> None:
    other = shutil.copyfile(plugin_path(), tmp_path / "libnccl-net-mine.so")
    options = [*named(nccl_wheels.library(version)), "--net-plugin", str(other), "--max", "4", *QUICK]
    # The job's own choice of a network does not reach it.
    record = results(tmp_path, *options, NCCL_NET="Socket", NCCL_NET_PLUGIN="none")
    assert [row["transport"] for row in record["results"]] == [*BOTH, "nccl+other"]
    assert record["transports"]["nccl+other"] == f"NCCL {version} with BaguaNet of {other.name}"
    assert says(record, "nccl+other")[0] == "Using network BaguaNet"


@pytest.mark.nightly
def test_the_library_is_that_of_a_job_unless_another_is_named(tmp_path: Path) -> None:
    version = "2.21.5"
    record = results(
        tmp_path,
        "nccl",
        "--transport",
        "nccl",
        "--max",
        "4",
        *QUICK,
        BAGUA_NET_BENCH_LIBNCCL=str(nccl_wheels.library(version)),
    )
    assert record["transports"] == {"nccl": f"NCCL {version} with its own Socket network"}


@pytest.mark.nightly
def test_nccl_s_log_stays_where_the_user_wants_it(tmp_path: Path) -> None:
    options = [*nccl(), "--max", "4", *QUICK]
    record = results(tmp_path, *options, NCCL_DEBUG="WARN")
    assert [says(record, name) for name in BOTH] == [
        ["NCCL_DEBUG is set, so NCCL's own log has its lines and choices"]
    ] * 2
    run = bench(*options, NCCL_DEBUG="INFO")
    assert run.returncode == 0
    assert "Using network BaguaNet" in run.stderr
    assert "NCCL INFO" not in run.stdout


# ---- several invocations ----


@pytest.mark.nightly
def test_invocations_meet_at_a_rendezvous() -> None:
    common = [*nccl(), "--rendezvous", f"127.0.0.1:{free_port()}", "--ranks", "2", "--ifname", "lo"]
    other = start(*common, "--rank", "1", "--max", "1K", *QUICK)
    first = bench(*common, "--rank", "0", "--max", "1K", *QUICK)
    out, err = other.communicate(timeout=SECONDS)
    assert (first.returncode, other.returncode) == (0, 0), first.stderr + err
    assert "0 wrong" in first.stdout
    assert out == ""


def test_ranks_with_different_releases_are_told_so() -> None:
    libraries = [str(nccl_wheels.library(version)) for version in ("2.21.5", "2.30.7")]
    common = ["nccl", "--rendezvous", f"127.0.0.1:{free_port()}", "--ranks", "2", "--ifname", "lo"]
    common += ["--transport", "nccl", "--max", "4", *QUICK]
    other = start(*common, "--rank", "1", BAGUA_NET_BENCH_LIBNCCL=libraries[1])
    first = bench(*common, "--rank", "0", BAGUA_NET_BENCH_LIBNCCL=libraries[0])
    _, err = other.communicate(timeout=SECONDS)
    assert (first.returncode, other.returncode) == (1, 1)
    for text in (first.stderr, err):
        assert "nccl cannot be measured: rank 1 has NCCL 2.30.7 with" in text
        assert ", and others NCCL 2.21.5 with its own Socket network: use one everywhere" in text


@pytest.mark.gate
def test_what_one_rank_lacks_is_told_of_that_rank() -> None:
    common = ["--rendezvous", f"127.0.0.1:{free_port()}", "--ranks", "2", "--ifname", "lo", "--max", "4", *QUICK]
    other = start(*common, "--rank", "1", BAGUA_NET_BENCH_LIBNCCL="/nowhere")
    first = bench(*common, "--rank", "0", BAGUA_NET_BENCH_LIBNCCL=str(nccl_wheels.library("2.30.7")))
    other.communicate(timeout=SECONDS)
    assert "nccl-socket (on rank 1: BAGUA_NET_BENCH_LIBNCCL=/nowhere" in first.stdout


@pytest.mark.nightly
def test_a_rank_that_never_comes_is_named_once() -> None:
    """Although each of its networks has a process of its own."""
    address = f"127.0.0.1:{free_port()}"
    run = bench(*nccl(), "--rendezvous", address, "--ranks", "2", "--rank", "0", "--timeout", "10", "--max", "4")
    assert run.returncode == 1
    assert "rank 1 did not arrive within 10 s" in run.stderr


# ---- refused options ----


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--cuda", "--libnccl", __file__], "it takes no --libnccl and no --net-plugin"),
        (["--transport", "bagua"], "not one of 'nccl+bagua', 'nccl'"),
        (["--libnccl", "/nowhere/libnccl.so.2"], "'/nowhere/libnccl.so.2' does not exist"),
        (["--libnccl", ""], "'--libnccl'"),
        (["--net-plugin", "/nowhere/x.so"], "'/nowhere/x.so' does not exist"),
        (["--redop", "avg", "--ranks", "3"], "multiplying with 1/3, which is not exact"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_the_reason(arguments: list[str], reason: str) -> None:
    run = bench("nccl", *arguments)
    assert run.returncode == 2
    assert reason in run.stderr
    assert run.stdout == ""


def refusal(*arguments: str, **extra: str) -> str:
    """The one line of a run that cannot start."""
    run = bench(*arguments, "--max", "4", *QUICK, **extra)
    assert (run.returncode, run.stdout) == (1, ""), run.stdout + run.stderr
    (line,) = run.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("stripped", "has been stripped"),
        ("old", "cannot run NCCL 2.10.0; use one of 2.18.1"),
        ("another", "is not NCCL"),
        ("crashing", "the process that tried was killed by SIGSEGV"),
    ],
)
def test_a_library_that_is_no_nccl_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    assert reason in refusal(*named(nccl_here.build(tmp_path, name)))


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("not a library")
    assert "is no shared library" in refusal(*named(text))
    line = refusal("nccl", BAGUA_NET_BENCH_LIBNCCL="/nowhere/libnccl.so.2")
    assert "BAGUA_NET_BENCH_LIBNCCL=/nowhere/libnccl.so.2: no such file" in line


@pytest.mark.quick
def test_a_machine_without_nccl_is_told_how_to_get_one(tmp_path: Path) -> None:
    """A package of that name, without a library, hides the installed one."""
    for package in (tmp_path / "nvidia", tmp_path / "nvidia" / "nccl"):
        package.mkdir()
        (package / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    line = refusal("nccl", PYTHONPATH=path, LD_LIBRARY_PATH="", PATH="/nowhere")
    if "no NCCL is installed here" not in line:
        pytest.skip("the system has an NCCL, too")
    assert "pip install --no-deps nvidia-nccl-cu12" in line


@pytest.mark.nightly
def test_variables_of_the_job_that_would_confuse_nccl_here_do_not(tmp_path: Path) -> None:
    job = {"NCCL_HOSTID": "the-same-for-all", "NCCL_COMM_BLOCKING": "0", "NCCL_CUMEM_ENABLE": ""}
    assert {row["wrong"] for row in results(tmp_path, *nccl(), "--max", "4", *QUICK, **job)["results"]} == {0}


def test_a_variable_that_asks_for_what_the_emulated_gpu_lacks_is_refused() -> None:
    assert "unset it or set it to 0" in refusal(*nccl(), NCCL_CUMEM_ENABLE="1")


def test_a_parameter_that_the_plugin_refuses_is_refused_before_nccl_starts() -> None:
    assert "BAGUA_NET_NSTREAMS=999: not in" in refusal(*nccl(), BAGUA_NET_NSTREAMS="999")


def test_buffers_that_do_not_fit_are_refused_before_they_are_made() -> None:
    run = bench(*nccl(), "--max", "100000G")
    assert run.returncode == 1
    assert "choose a smaller --max" in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("another", "is no network plugin"),
        ("crashing", "rank 0 of nccl+other was killed by SIGSEGV"),
    ],
)
def test_another_plugin_that_is_none_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    line = refusal(*nccl(), "--net-plugin", str(nccl_here.build(tmp_path, name)))
    assert reason in line.replace("rank 1", "rank 0")


def test_a_network_that_cannot_start_is_an_error_in_nccl_s_and_its_own_words() -> None:
    run = bench(*nccl(), "--ifname", "nosuchif0", "--max", "4", *QUICK)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert "nccl+bagua: ncclGetUniqueId: " in line or "nccl: ncclGetUniqueId: " in line
    assert "no socket interface found" in line


# ---- faults ----


@pytest.mark.nightly
def test_another_plugin_that_fails_is_not_blamed_for_an_older_warning(tmp_path: Path) -> None:
    """2.32 warns of RMA in every initialization."""
    other = nccl_here.build(tmp_path, "failing")
    run = bench(
        *named(nccl_wheels.library("2.32.3")),
        "--transport",
        "nccl",
        "--net-plugin",
        str(other),
        "--max",
        "4",
        *QUICK,
    )
    assert run.returncode == 1
    assert "nccl+other: ncclCommGetAsyncError: unhandled system error" in run.stderr
    assert "RMA" not in run.stderr


@pytest.mark.nightly
def test_a_rank_that_is_killed_ends_the_run_with_its_network_and_signal() -> None:
    with endless(*nccl(), *ENDLESS) as (process, ranks):
        others = [os.pidfd_open(pid) for pid in ranks.values()]
        os.kill(ranks[1], signal.SIGSEGV)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "rank 1 of nccl" in err
        assert "was killed by SIGSEGV" in err
        assert len(err.splitlines()) == 1
        assert ended(others)


@pytest.mark.nightly
def test_a_rank_that_stands_still_ends_the_run() -> None:
    """Long enough for a busy machine to start."""
    options = [*nccl(), *ENDLESS, "--timeout", "15", "--transport", "nccl+bagua"]
    with endless(*options) as (process, ranks):
        os.kill(ranks[1], signal.SIGSTOP)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "rank 0 ended with exit code 4: nccl+bagua: no progress within 15 s" in err
        assert len(err.splitlines()) == 1


@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_each_rank_has_processors_of_its_own() -> None:
    with endless(*nccl(), *ENDLESS, "--transport", "nccl") as (_, ranks):
        theirs = [os.sched_getaffinity(ranks[rank]) for rank in range(2)]
    assert theirs[0] | theirs[1] == os.sched_getaffinity(0)
    assert not theirs[0] & theirs[1]


@pytest.mark.nightly
def test_the_library_is_not_loaded_by_the_process_that_asked() -> None:
    with endless(*nccl(), *ENDLESS, "--transport", "nccl") as (process, ranks):
        assert "libnccl.so" not in Path(f"/proc/{process.pid}/maps").read_text()
        assert "libnccl.so" in Path(f"/proc/{ranks[0]}/maps").read_text()


@pytest.mark.nightly
def test_the_record_has_what_a_reader_needs_to_judge_it(tmp_path: Path) -> None:
    record = results(tmp_path, *nccl(), "--transport", "nccl", "--max", "4", *QUICK)
    assert record["config"]["device"] == "emulated"
    assert "without a GPU" in record["where"]
    assert "without a GPU" in record["summary"][0]
    json.dumps(record)
