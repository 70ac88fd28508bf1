# SPDX-License-Identifier: MIT
"""``bagua-net bench`` as a command: real ranks, real networks, and what happens when one of them fails."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import bagua_net
from bagua_net._bench.workload.ops import OPS
from tests.package.bench_command import QUICK, SECONDS, bench, ended, endless, environment, free_port, results, start
from tests.package.sandbox import Sandbox, as_user
from tests.support import nccl_wheels
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

# 4 B is done at once; 16 MiB would warm up for minutes, in which a rank talks to no process but the other rank.
ENDLESS = ["--transport", "bagua", "--max", "16M", "--factor", "4194304", "--warmup", "20000", "--iters", "20"]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


# ---- measuring ----


USUAL = [("reduce_scatter", "3"), ("all_to_all", "3")]
EVERY = variants(
    *USUAL[:1],
    nightly=[(op, ranks) for op in OPS for ranks in ("2", "3") if (op, ranks) not in USUAL[:1]],
)


@pytest.mark.parametrize(("op", "ranks"), EVERY)
def test_every_operation_is_right(tmp_path: Path, op: str, ranks: str) -> None:
    record = results(
        tmp_path,
        "--op",
        op,
        "--ranks",
        ranks,
        "--transport",
        "bagua",
        "--min",
        "12",
        "--max",
        "100K",
        "--factor",
        "90",
        *QUICK,
    )
    sizes = [row["size"] for row in record["results"]]
    assert sizes == sorted(set(sizes))
    assert max(sizes) > 50_000
    for row in record["results"]:
        assert row["time_us"] > 0
        assert row["algbw_gbps"] == pytest.approx(row["size"] / row["time_us"] / 1e3)


@pytest.mark.parametrize(
    ("dtype", "redop"),
    variants(
        ("bfloat16", "sum"),
        nightly=[
            ("int8", "avg"),
            ("int64", "max"),
            ("float32", "sum"),
            ("float32", "prod"),
            ("float32", "min"),
            ("float32", "max"),
            ("float32", "avg"),
            ("uint8", "sum"),
            ("int32", "prod"),
            ("float16", "avg"),
            ("float64", "min"),
        ],
    ),
)
def test_every_type_and_reduction_is_right(tmp_path: Path, dtype: str, redop: str) -> None:
    options = ["--ranks", "3", "--dtype", dtype, "--redop", redop, "--transport", "bagua"]
    results(tmp_path, *options, "--min", "5", "--max", "500K", "--factor", "100", *QUICK)


@pytest.mark.quick
def test_the_table_has_nccl_tests_columns_and_ends_with_what_was_measured() -> None:
    run = bench("--transport", "bagua", "--min", "4K", "--max", "4K", *QUICK)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert "between 2 ranks on this machine, over loopback" in lines[0]
    heading = next(line for line in lines if "busbw" in line)
    assert heading.split() == ["#", "size", "count", "type", "redop", "transport", "time", "algbw", "busbw", "#wrong"]
    (row,) = [line.split() for line in lines if not line.startswith("#")]
    assert row[:5] == ["4096", "1024", "float32", "sum", "bagua"]
    assert row[-1] == "0"
    last = lines[lines.index("#") + 1 :]
    assert last[0].endswith("every result was checked, 0 wrong.")
    assert last[-1].startswith("# bagua: 4 KiB in ")


@pytest.mark.parametrize("version", variants("2.30.7", nightly=["2.21.5"]))
def test_nccl_s_own_sockets_take_turns_with_ours(tmp_path: Path, version: str) -> None:
    library = nccl_wheels.library(version)
    options = ["--transport", "bagua", "--transport", "nccl-socket", "--max", "1M", "--factor", "512", "--iters", "2"]
    record = results(tmp_path, *options, BAGUA_NET_BENCH_LIBNCCL=str(library))
    assert record["transports"]["nccl-socket"] == f"NCCL {version}'s own Socket network"
    assert [row["transport"] for row in record["results"]] == ["bagua", "nccl-socket"] * 3
    assert all(len(row["rounds"]) == 5 for row in record["results"])
    assert any(line.startswith("bagua against nccl-socket: ") for line in record["summary"])


def test_an_nccl_that_is_too_old_to_compare_says_so(tmp_path: Path) -> None:
    """Even where another one is installed that could be compared: that one was not requested."""
    old, current = nccl_wheels.library("2.18.3"), nccl_wheels.library("2.30.7")
    installed = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(current)
    path = os.pathsep.join([str(Path(bagua_net.__file__).parents[1]), str(tmp_path)])
    options = ["--transport", "nccl-socket", "--max", "4", *QUICK]
    run = bench(*options, BAGUA_NET_BENCH_LIBNCCL=str(old), PYTHONPATH=path)
    assert run.returncode == 1
    assert "is NCCL 2.18.3, and 2.20 is the oldest that can be compared" in run.stderr


@pytest.mark.nightly
@needs_torch
@pytest.mark.parametrize("op", variants("allreduce", nightly=["reduce_scatter", "sendrecv"]))
def test_gloo_takes_turns_with_ours(tmp_path: Path, op: str) -> None:
    networks = ["--transport", "bagua", "--transport", "gloo"]
    record = results(tmp_path, *networks, "--op", op, "--min", "64K", "--max", "64K", *QUICK)
    assert [row["transport"] for row in record["results"]] == ["bagua", "gloo"]


@pytest.mark.nightly
@needs_torch
def test_the_backend_takes_turns_with_gloo_in_processes_of_its_own(tmp_path: Path) -> None:
    networks = ["--transport", "torch+bagua", "--transport", "gloo"]
    record = results(tmp_path, *networks, "--min", "64K", "--max", "64K", *QUICK)
    assert [row["transport"] for row in record["results"]] == ["gloo", "torch+bagua"]
    assert all(row["processor_us"] > 0 for row in record["results"])
    assert any(line.startswith("torch+bagua against gloo: ") for line in record["summary"])


@pytest.mark.parametrize("codec", variants("u4", nightly=["u8"]))
def test_codes_take_turns_with_elements(tmp_path: Path, codec: str) -> None:
    options = ["--codec", codec, "--redop", "avg", "--ranks", "3", "--min", "12", "--max", "800K"]
    record = results(tmp_path, *options, "--factor", "256", *QUICK)
    name, bits = f"bagua+{codec}", codec[1:]
    assert [row["transport"] for row in record["results"]] == ["bagua", name] * 3
    assert record["transports"][name].endswith(f", {bits} bits for each element, a range for each 512 of them")
    assert any(line.startswith(f"{name} against bagua: ") for line in record["summary"])


@pytest.mark.nightly
def test_what_the_figures_of_codes_mean_is_said() -> None:
    run = bench("--codec", "u8", "--codec", "u4", "--max", "4", *QUICK)
    assert run.returncode == 0, run.stderr
    told = next(line for line in run.stdout.splitlines() if "the codec's bound" in line)
    assert told.startswith("# bagua+u8 and bagua+u4: ")
    assert "bandwidths count the bytes of the elements, as nccl-tests does" in told


def test_only_an_allreduce_of_float32_is_compressed() -> None:
    for options in (["--op", "broadcast"], ["--dtype", "float16"], ["--redop", "max"]):
        run = bench("--codec", "u8", *options, "--max", "4", *QUICK)
        assert run.returncode == 1
        assert "bagua+u8 cannot be measured: only an allreduce of float32, sum or avg, can be compressed" in run.stderr


@pytest.mark.nightly
@pytest.mark.quick
def test_a_model_is_one_row_with_all_its_gradients(tmp_path: Path) -> None:
    options = ["--model", "resnet50", "--dtype", "float16", "--transport", "bagua", "--iters", "1", "--rounds", "1"]
    (row,) = results(tmp_path, "step", *options)["results"]
    assert (row["label"], row["count"], row["size"]) == ("resnet50", 25_557_032, 51_114_064)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "bench.png"
    run = bench("--transport", "bagua", "--max", "64", *QUICK, "--plot", str(picture))
    assert run.returncode == 0, run.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_another_interface_than_loopback_when_told(tmp_path: Path) -> None:
    record = results(tmp_path, "--transport", "bagua", "--max", "4", "--ifname", "=lo", *QUICK)
    assert record["environment"]["NCCL_SOCKET_IFNAME"] == "=lo"


def test_all_networks_go_where_the_prefix_leads(tmp_path: Path) -> None:
    """The others do not read it."""
    options = ["--transport", "bagua", "--max", "4", *QUICK]
    record = results(tmp_path, *options, BAGUA_NET_ADDRESS_PREFIX="203.0.113.0/24,127.0.0.0/8")
    assert record["environment"]["NCCL_SOCKET_IFNAME"] == "=lo"
    run = bench(*options, BAGUA_NET_ADDRESS_PREFIX="203.0.113.0/24")
    assert run.returncode == 1
    assert "no network interface to use" in run.stderr


def test_settings_are_those_of_the_files_that_a_job_would_read(tmp_path: Path) -> None:
    """No NCCL is in the process that would put them into the environment."""
    conf = tmp_path / "job.conf"
    conf.write_text("BAGUA_NET_NSTREAMS=3\nBAGUA_NET_SNDBUF=8K\nBAGUA_NET_NSTREMS=4\nNCCL_NET=BaguaNet\n")
    file = tmp_path / "record.json"
    options = ["--transport", "bagua", "--max", "4", *QUICK, "--json", str(file)]
    run = bench(*options, NCCL_CONF_FILE=str(conf), BAGUA_NET_SNDBUF="1M")
    assert run.returncode == 0, run.stderr
    misspelt = "BAGUA_NET_NSTREMS is not a parameter; did you mean BAGUA_NET_NSTREAMS?"
    assert run.stderr == f"bagua-net: {conf}: {misspelt}\n"
    assert f"with BAGUA_NET_NSTREAMS=3 of {conf}" in run.stdout.splitlines()[0]
    found = json.loads(file.read_text())["environment"]
    assert (found["BAGUA_NET_NSTREAMS"], found["BAGUA_NET_SNDBUF"]) == ("3", "1M")
    conf.write_text("BAGUA_NET_NSTREAMS=999\n")
    run = bench(*options, NCCL_CONF_FILE=str(conf))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"bagua-net: {conf}: BAGUA_NET_NSTREAMS=999: not in 0 … 64; ")
    assert len(run.stderr.splitlines()) == 1


def test_more_ranks_than_cores_are_minded_before_the_figures() -> None:
    core = min(os.sched_getaffinity(0))
    program = (
        f"import os, runpy; os.sched_setaffinity(0, {{{core}}}); runpy.run_module('bagua_net', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, "bench", "--transport", "bagua", "--max", "4", *QUICK]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, run.stderr
    measured, mind, figures = run.stdout.splitlines()[-3:]
    assert measured.startswith("# Measured: ")
    assert mind == "# Mind that 2 ranks shared 1 processor core: these figures are the scheduler's as well."
    assert figures.startswith("# bagua: ")


# ---- several invocations ----


@pytest.mark.quick
def test_invocations_meet_at_a_rendezvous() -> None:
    common = ["--rendezvous", f"127.0.0.1:{free_port()}", "--ranks", "2", "--ifname", "lo", "--transport", "bagua"]
    other = start(*common, "--rank", "1", "--max", "1K", *QUICK)
    first = bench(*common, "--rank", "0", "--max", "1K", *QUICK)
    out, err = other.communicate(timeout=SECONDS)
    assert (first.returncode, other.returncode) == (0, 0), first.stderr + err
    assert "0 wrong" in first.stdout
    assert (out, err) == (
        "",
        f"# rank 1: looking for rank 0 at {common[1]}\n# rank 1: done; rank 0 has the table\n",
    )


def test_invocations_with_other_options_are_told_so() -> None:
    common = ["--rendezvous", f"127.0.0.1:{free_port()}", "--ranks", "2", "--ifname", "lo", "--transport", "bagua"]
    other = start(*common, "--rank", "1", "--max", "4K", *QUICK)
    first = bench(*common, "--rank", "0", "--max", "1K", *QUICK)
    _, err = other.communicate(timeout=SECONDS)
    assert (first.returncode, other.returncode) == (1, 1)
    assert "rank 1 was started with other options" in first.stderr
    assert "rank 1 was started with other options" in err


def test_ranks_of_torchrun_meet_beside_its_store() -> None:
    """torchrun's agent listens on MASTER_PORT for as long as its workers live."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        common["MASTER_PORT"] = str(store.getsockname()[1])
        other = start("--transport", "bagua", "--max", "1K", *QUICK, RANK="1", LOCAL_RANK="1", **common)
        first = bench("--transport", "bagua", "--max", "1K", *QUICK, RANK="0", LOCAL_RANK="0", **common)
        _, err = other.communicate(timeout=SECONDS)
    assert (first.returncode, other.returncode) == (0, 0), first.stderr + err
    assert "between 2 ranks on this machine" in first.stdout


@pytest.mark.nightly
def test_a_rank_that_never_comes_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    run = bench("--rendezvous", address, "--ranks", "3", "--rank", "0", "--timeout", "10", "--max", "4")
    assert run.returncode == 1
    assert "ranks 1 and 2 did not arrive within 10 s" in run.stderr


# ---- refused options ----


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--op", "allsum"], "not one of 'allreduce'"),
        (["--dtype", "float8"], "not one of 'int8'"),
        (["--transport", "ucx"], "not one of 'bagua', 'nccl-socket', 'gloo', 'torch+bagua'"),
        (["--min", "64", "--max", "4"], "below the smallest"),
        (["--min", "lots"], "is not a size"),
        (["--ranks", "1"], "'--ranks'"),
        (["--ranks", "121"], "'--ranks'"),
        (["--rank", "1"], "--rendezvous"),
        (["step", "--codec", "u16"], "not one of 'u8', 'u4'"),
        (["--max", "4", "step"], "options of `bagua-net bench step` come after `step`"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_the_reason(arguments: list[str], reason: str) -> None:
    run = bench(*arguments, COLUMNS="500")
    assert run.returncode == 2
    assert reason in run.stderr


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--max", "100000G"], "choose a smaller --max"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at/all.json: no such directory"),
    ],
)
def test_what_cannot_work_is_refused_before_it_starts(arguments: list[str], reason: str) -> None:
    run = bench(*arguments)
    assert run.returncode == 1
    assert reason in run.stderr
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1


def test_a_file_that_may_not_be_written_is_refused_before_it_starts(sandbox: Sandbox) -> None:
    sandbox.home.chmod(0o555)
    done = as_user(sandbox, "bench", "--json", str(sandbox.home / "run.json"))
    sandbox.home.chmod(0o755)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"bagua-net: {sandbox.home / 'run.json'}: this user may not write there\n"


def test_a_network_without_an_interface_says_so_before_it_says_what_it_left_out() -> None:
    run = bench("--ifname", "nosuchif0", "--transport", "bagua", "--max", "4")
    assert run.returncode == 1
    _, _, reason = run.stderr.partition("the network could not be initialized: ")
    assert reason.startswith("NET/BaguaNet: no network interface to use (No such device). NCCL_SOCKET_IFNAME=nosuchif0")
    assert "lo (127.0.0.1) not used: " in reason


def test_a_network_that_was_asked_for_and_is_missing_is_an_error() -> None:
    run = bench("--transport", "nccl-socket", BAGUA_NET_BENCH_LIBNCCL="/nowhere/libnccl.so.2")
    assert run.returncode == 1
    assert "nccl-socket cannot be measured: BAGUA_NET_BENCH_LIBNCCL=/nowhere" in run.stderr


@pytest.mark.nightly
def test_a_network_that_nobody_asked_for_and_is_missing_is_a_note() -> None:
    run = bench("--max", "4", *QUICK, BAGUA_NET_BENCH_LIBNCCL="/nowhere/libnccl.so.2")
    assert run.returncode == 0, run.stderr
    assert "# Not compared: nccl-socket (BAGUA_NET_BENCH_LIBNCCL=/nowhere" in run.stdout


@pytest.mark.nightly
def test_cuda_without_cuda_is_refused_in_one_line() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    run = bench("nccl", "--cuda", "--max", "4")
    assert run.returncode == 1
    assert "torch" in run.stderr
    if importlib.util.find_spec("torch") is None:
        assert "pip install torch" in run.stderr
    assert len(run.stderr.splitlines()) == 1


# ---- faults ----

# Every Python process that finds this module imports it: rank 1's network delivers one wrong byte.
SABOTAGE = """
import sys
if '"rank": 1' in " ".join(sys.orig_argv):
    from bagua_net._bench.transports import base, nccl_net
    bind = nccl_net.NetTransport.bind
    def bind_wrong(self, job):
        bound = bind(self, job)
        def call():
            bound.call()
            job.receive[len(job.receive) // 2] ^= 1
        return base.Bound(call)
    nccl_net.NetTransport.bind = bind_wrong
"""


@pytest.mark.quick
def test_a_wrong_result_is_counted_and_ends_with_status_1(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    root = Path(bagua_net.__file__).parents[1]
    path = os.pathsep.join([str(root), str(tmp_path)])
    run = bench("--transport", "bagua", "--min", "4K", "--max", "4K", *QUICK, PYTHONPATH=path)
    assert run.returncode == 1
    (row,) = [line.split() for line in run.stdout.splitlines() if not line.startswith("#")]
    assert row[-1] == "2"  # one in the check before the rounds, one in that after them
    assert "2 ELEMENTS ARE WRONG" in run.stdout


@pytest.mark.parametrize(
    ("number", "said"),
    variants(
        (signal.SIGBUS, "rank 1 was killed by SIGBUS: /dev/shm may be full; in Docker, --shm-size=1g\n"),
        gate=[
            (
                signal.SIGKILL,
                "rank 1 was killed by SIGKILL, as the kernel does where memory or a container's limit runs short\n",
            )
        ],
    ),
)
def test_a_rank_that_is_killed_ends_the_run_with_its_reason(number: signal.Signals, said: str) -> None:
    with endless(*ENDLESS) as (process, ranks):
        others = [os.pidfd_open(pid) for pid in ranks.values()]
        os.kill(ranks[1], number)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert err.endswith(said)
        assert len(err.splitlines()) == 1
        assert ended(others)


@pytest.mark.nightly
def test_a_rank_that_stands_still_ends_the_run() -> None:
    with endless(*ENDLESS, "--timeout", "10") as (process, ranks):
        os.kill(ranks[1], signal.SIGSTOP)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "rank 0 ended with exit code" in err


_STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130, signal.SIGTERM: 128 + signal.SIGTERM}


@pytest.mark.parametrize("number", variants(signal.SIGKILL, gate=[signal.SIGTERM], nightly=[signal.SIGINT]))
def test_no_process_outlives_the_command(number: signal.Signals) -> None:
    with endless(*ENDLESS) as (process, ranks):
        pidfds = [os.pidfd_open(pid) for pid in ranks.values()]
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
        assert process.returncode == _STATUS[number]
        assert ended(pidfds)
