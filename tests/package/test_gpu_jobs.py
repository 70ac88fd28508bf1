# SPDX-License-Identifier: MIT
"""The parts of tests/gpu that need no GPU: plan, launch, log, counters, and the script."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bagua_net._native import library
from tests.gpu.gpu_jobs import counters, launch, nccl_log, nccl_tests, places, plan, proof
from tests.gpu.gpu_jobs.job import Job, Task
from tests.package import test_loader
from tests.support import nccl_wheels, programs

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "gpu" / "run.sh"

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


# ---- the plan ----


def test_two_ranks_do_everything_that_there_is() -> None:
    done = [(each, case) for each in plan.SETTINGS for case in plan.cases(each, plan.EFFORTS[2])]
    assert {(case.op, case.dtype) for each, case in done if each.algo != "Tree"} == {
        (op, dtype) for op in plan.OPS for dtype in plan.ELEMENT_BYTES
    }
    assert {(each.proto, each.algo) for each, _ in done} == {
        ("", ""),
        *((proto, algo) for proto in ("LL", "LL128", "Simple") for algo in ("Ring", "Tree")),
    }
    sizes = {case.size for _, case in done}
    assert (min(sizes), max(sizes)) == (8, plan.GIB)


def test_a_tree_gets_nothing_that_it_cannot_do() -> None:
    cases = plan.cases(plan.Setting("LL", "Tree"), plan.EFFORTS[2])
    assert {case.op for case in cases} == {"all_reduce"}


@pytest.mark.parametrize("ranks", plan.EFFORTS)
def test_no_case_is_done_twice(ranks: int) -> None:
    for setting in plan.SETTINGS:
        names = [case.name for case in plan.cases(setting, plan.EFFORTS[ranks])]
        assert len(set(names)) == len(names)


def test_the_least_that_must_travel() -> None:
    amount = plan.Effort(("float32",), (8, 1000), (64,))
    assert plan.least_bytes(plan.Setting(), amount, 4) == 2 * 3 * (8 + 1000)


# ---- counters ----


def test_the_counters_are_those_of_the_header() -> None:
    library.load()
    assert counters.fields() == [name for name, _ in library.ffi.typeof("bnet_counters_t").fields]


def test_counters_are_read_where_the_library_is_loaded_and_nowhere_else() -> None:
    program = (
        "import ctypes\n"
        "from tests.gpu.gpu_jobs import counters\n"
        "from bagua_net import plugin_path\n"
        "assert counters.read() is None\n"
        "ctypes.CDLL(str(plugin_path()))\n"
        "print(counters.read()['bytes_sent'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": programs.search_path()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


# ---- NCCL's log ----

#: From NCCL 2.30, for two ranks; 2.18 adds bus numbers to the ranks of a connection.
LOG = """\
host:10:10 [0] NCCL INFO NCCL version 2.30.7+cuda13.0
host:10:12 [0] NCCL INFO NET/BaguaNet: version 0.1.0, net API v12, wire version 1, streams on demand, progress inline
host:10:12 [0] NCCL INFO Using network BaguaNet
host:10:12 [0] NCCL INFO ncclCommInitRankConfig comm 0x5581 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 - Init START
host:10:12 [0] NCCL INFO Channel 00/02 : 0 1
host:10:14 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/BaguaNet/0
host:10:14 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/BaguaNet/0/Shared
host:10:14 [0] NCCL INFO Channel 01 : 0[1b000] -> 1[1b000] [send] via NET/BaguaNet/0
host:10:14 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] via P2P/CUMEM
host:10:10 [0] NCCL INFO AllReduce: 1048600 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..1}
host:10:10 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}
host:10:16 [0] NCCL INFO ncclCommSplit comm 0x6 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x5581 \
splitCount 1 color 7 key 0 - Init START
host:10:16 [0] NCCL INFO ncclCommSplit comm 0x6 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x5581 \
splitCount 1 color 7 key 0 - Init COMPLETE

host:10:16 [0] transport.cc:10 NCCL WARN something
"""


def test_what_the_log_says() -> None:
    found = nccl_log.parse(LOG)
    assert found.version == "2.30.7"
    assert found.networks == {"BaguaNet"}
    assert found.plugin == "0.1.0 by net API v12"
    assert found.connections == {"BaguaNet": 3, "P2P": 1}
    assert found.choices == {("RING", "LL128"), ("TREE", "SIMPLE")}
    assert found.splits == 1
    assert found.warnings == ("host:10:16 [0] transport.cc:10 NCCL WARN something",)


def test_the_log_of_a_job_that_did_not_use_the_plugin() -> None:
    found = nccl_log.parse(LOG.replace("BaguaNet", "Socket"))
    assert (found.networks, found.plugin) == (frozenset({"Socket"}), "")


def test_no_log_says_nothing(tmp_path: Path) -> None:
    assert nccl_log.read(tmp_path / "missing") == nccl_log.parse("")


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_real_nccl_names_the_plugin_so(version: str) -> None:
    _, log = test_loader.choose(version, "bagua", test_loader.library())
    assert " by net API v" in nccl_log.parse(log).plugin, log


# ---- launch ----


def test_each_rank_is_a_host_of_its_own_with_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    tasks = [Task(Job("several", 3), rank, str(tmp_path), 1.0, 1) for rank in range(3)]
    found = [launch.environment(task, ("4", "6")) for task in tasks]
    assert len({each["NCCL_HOSTID"] for each in found}) == 3
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["4", "6", "4"]
    for each in found:
        assert each["LOCAL_RANK"] == "0"
        assert each["NCCL_NET"] == "BaguaNet"
        assert "NCCL_PROTO" not in each
        assert each["NCCL_SOCKET_IFNAME"] == "eth7"


def test_without_the_plugin_nccl_gets_its_own_sockets(tmp_path: Path) -> None:
    task = Task(Job("several", 2, plugin=False), 0, str(tmp_path), 1.0, 1)
    assert launch.environment(task, ())["NCCL_NET"] == "Socket"


@pytest.mark.parametrize(("named", "count", "found"), [("", 2, ["0", "1"]), ("3,5", 2, ["3", "5"]), ("3,9", 1, ["3"])])
def test_gpus_are_named_as_cuda_names_them(
    monkeypatch: pytest.MonkeyPatch, named: str, count: int, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert launch.visible_gpus(count) == found


def _children() -> set[str]:
    return {pid for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()}


@pytest.mark.gate
@needs_torch
def test_a_rank_that_fails_is_heard_and_none_is_left(tmp_path: Path) -> None:
    before = _children()
    with pytest.raises(launch.JobFailed, match=r"(?s)status 1.*rank 0.*KeyError: 'no such program'"):
        launch.run(Job("no such program", 2, "cpu", plugin=False), tmp_path, 60)
    assert _children() <= before


@needs_torch
def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    before = _children()
    with pytest.raises(launch.JobFailed, match="longer than 1 s"):
        launch.run(Job("several", 2, "cpu", plugin=False), tmp_path, 1)
    assert _children() <= before


@needs_torch
def test_a_wrong_element_is_counted() -> None:
    import torch

    from tests.gpu.gpu_jobs import collectives

    right = torch.arange(8.0)
    found = torch.cat([right, torch.tensor([-1.0])])
    assert collectives.wrong(collectives.Data(right, found, right)) == 0
    found[3] = float("nan")
    assert collectives.wrong(collectives.Data(right, found, right)) == 1


# ---- the record of a job ----


def _found(*, plugin: bool = True, **changed: Any) -> dict[str, Any]:
    """The row of a successful job of one rank, with these parts of its report changed."""
    report = {"rank": 0, "result": {"right": [True]}, "counters": {"bytes_sent": 1} if plugin else None, **changed}
    log = nccl_log.parse(LOG if plugin else LOG.replace("BaguaNet", "Socket"))
    return proof.row(Job("several", 1, plugin=plugin), launch.Outcome([report], [log], Path()))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (_found(), ""),
        (_found(plugin=False), ""),
        (_found(result={"right": [True, False]}), "right: [True, False]"),
        (_found(result=[{"wrong": ["all_reduce: 3 elements are wrong"]}]), "3 elements"),
        (_found(counters={"bytes_sent": 0}), "sent 0 bytes"),
        (_found(counters=None), "sent 0 bytes"),
        (_found(plugin=False, counters={"bytes_sent": 1}), "sent 1 bytes"),
        (_found() | {"plugin": False}, "networks are ['BaguaNet']"),
        (_found() | {"failure": "rank 1 is gone"}, "rank 1 is gone"),
    ],
)
def test_what_is_wrong_with_a_job(found: dict[str, Any], said: str) -> None:
    problems = proof.wrong(json.loads(json.dumps(found)))
    assert bool(problems) == bool(said)
    assert said in "\n".join(problems)


def test_ranks_that_disagree_are_wrong() -> None:
    found = _found(result={"losses": [2.0, 1.0]})
    for key in ("reports", "nccl"):
        found[key] = [found[key][0]] * 2
    assert proof.wrong(found) == []
    found["reports"][1] = {**found["reports"][1], "result": {"losses": [2.0, 1.5]}}
    assert "disagree" in proof.wrong(found)[0]


# ---- nccl-tests ----


def test_the_summary_of_nccl_tests() -> None:
    text = "#  \n# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 1.25 \n#\n"
    assert nccl_tests.parse(text) == nccl_tests.Summary(3, 1.25)
    with pytest.raises(nccl_tests.OutputUnknown, match="Segmentation"):
        nccl_tests.parse("Segmentation fault")


def test_each_process_of_nccl_tests_has_a_host_id() -> None:
    words = nccl_tests.command(2)
    start = words[words.index("sh") :]
    done = subprocess.run(
        [*start[: start.index(nccl_tests.PROGRAM)], "env"],
        env={"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_RANK": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert {"NCCL_HOSTID=bagua-net-test-1", "NCCL_TESTS_DEVICE=0"} <= set(done.stdout.splitlines())


# ---- the script ----


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only the sources, as on a machine where nothing was ever installed. Nothing is built before the first use."""
    if not all(map(shutil.which, ("cmake", os.environ.get("CC", "cc").split()[0]))):
        pytest.skip("needs cmake and a C compiler")
    made = tmp_path_factory.mktemp("sources")
    for name in ("common", "plugin", "host", "emulator", "python", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__", "lib", "results"))
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, made)
    return made


def _bare(directory: Path, *lacking: str) -> dict[str, str]:
    """An environment whose python3 is this one without the package's dependencies and the ``lacking`` modules."""
    (directory / "bin").mkdir()
    python = directory / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (directory / "sitecustomize.py").write_text(
        f"import sys\nfor name in {('cffi', 'typer', 'click', 'rich', *lacking)}:\n    sys.modules[name] = None\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "BAGUA_NET_"))}
    path = os.pathsep.join((str(directory / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    return kept | {"PATH": path, "PYTHONPATH": str(directory)}


def _script(tree: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(tree / "tests" / "gpu" / "run.sh"), *words]
    if tree != ROOT:
        command += ["--build", str(tree.with_suffix(".build"))]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    "words", [(), ("out", "--minutes", "soon"), ("out", "--only", "some"), ("a", "b"), ("--sharing",)]
)
def test_the_script_says_how_to_use_it(words: tuple[str, ...]) -> None:
    done = _script(ROOT, *words)
    assert done.returncode == 2
    assert "run.sh OUT [--minutes N]" in done.stderr


@pytest.mark.nightly
@needs_torch
def test_the_script_on_a_bare_machine_without_a_gpu(tree: Path, tmp_path: Path) -> None:
    """It builds, and reports what it cannot do and why. It does not need cffi, typer and rich."""
    if not isinstance(places.gpus(), str):
        pytest.skip("this machine has a GPU")
    out = tmp_path / "out"
    (tree / "python" / "bagua_net" / "lib" / "libnccl-net-bagua.so").unlink(missing_ok=True)
    done = _script(tree, str(out), "--minutes", "4", **_bare(tmp_path))
    summary = (out / "summary.txt").read_text()
    assert done.returncode == 1, done.stdout + done.stderr
    assert (tree / "python" / "bagua_net" / "lib" / "libnccl-net-bagua.so").is_file()
    assert "sees no CUDA device here" in (out / "benchmark.log").read_text()
    assert "FAILED: tests: none passed" in summary, summary
    assert " skipped" in summary, summary
    assert "benchmark: gpu: torch" in summary, summary
    assert "something FAILED" in summary
    assert len(list(out.iterdir())) <= 8


@pytest.mark.nightly
@needs_torch
@pytest.mark.parametrize("lacking", [(), ("pytest",)], ids=["pytest", "no-pytest"])
def test_the_script_keeps_what_came_of_each_job(tree: Path, tmp_path: Path, lacking: tuple[str, ...]) -> None:
    """With pytest and without. As cffi is missing as well, the jobs on host memory run without the plugin."""
    out = tmp_path / "out"
    words = (str(out), "--device", "cpu", "--only", "tests", "--minutes", "4")
    done = _script(tree, *words, **_bare(tmp_path, *lacking))
    log = (out / "tests.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    rows = [json.loads(line) for line in (out / "jobs.jsonl").read_text().splitlines()]
    assert ("several", False) in {(row["program"], row["plugin"]) for row in rows}, log
    assert [proof.wrong(row) for row in rows] == [[]] * len(rows)
    assert "cffi is not installed" in log
    assert ("::test_" in log) == (not lacking)


@pytest.mark.nightly
def test_the_script_leaves_tables_and_figures(tree: Path, tmp_path: Path) -> None:
    """On host memory, where only the transports are compared."""
    nccl = nccl_wheels.library("2.30.7")
    out = tmp_path / "out"
    done = _script(
        tree, str(out), "--device", "cpu", "--only", "benchmark", "--minutes", "4",
        BAGUA_NET_BENCH_LIBNCCL=str(nccl), PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + (out / "benchmark.log").read_text()
    assert "| loopback | 2 | 8 B |" in (out / "gpu-allreduce.md").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark.log", "build.log", "gpu-allreduce.jsonl", "gpu-allreduce.md", "summary.txt",
    ]  # fmt: skip
