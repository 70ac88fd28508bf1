# SPDX-License-Identifier: MIT
"""``bagua-net doctor --nccl``: at which step a job over NCCL itself stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bagua_net import plugin_path
from bagua_net._doctor import nccl, nccl_ranks
from bagua_net._doctor.nccl_job import STEPS
from bagua_net._doctor.nccl_ranks import Report
from bagua_net._nccl import discovery
from tests.package import nccl_here
from tests.package.sandbox import Sandbox
from tests.support import nccl_wheels
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

Finding = dict[str, str]


def diagnose(sandbox: Sandbox, *arguments: str, **settings: str) -> tuple[int, dict[str, Finding]]:
    """The status and the findings of the job, by step."""
    given = {"NCCL_SOCKET_IFNAME": "lo"} | settings
    done = sandbox.run("doctor", "--json", *arguments, **given)
    assert done.stderr == ""
    steps = {f"NCCL {step}": step for step in STEPS}
    found = {steps[check["name"]]: check for check in json.loads(done.stdout) if check["name"] in steps}
    return done.returncode, found


def named(library: Path) -> list[str]:
    return ["--libnccl", str(library)]


@pytest.mark.quick
def test_a_job_that_works_names_every_step_and_the_network(sandbox: Sandbox) -> None:
    library = nccl_here.library()
    status, found = diagnose(sandbox, *named(library))
    assert (status, tuple(found)) == (0, STEPS)
    assert {check["verdict"] for check in found.values()} == {"ok"}
    assert str(library) in found["load"]["fact"]
    assert "coll channels" in found["init"]["fact"]
    assert found["network"]["fact"] == "BaguaNet, as `bagua-net run` turns it on; it is off here"


def test_without_the_option_there_is_no_job(sandbox: Sandbox) -> None:
    assert diagnose(sandbox) == (0, {})


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_the_library_of_a_job_here_needs_no_name(sandbox: Sandbox, version: str) -> None:
    status, found = diagnose(sandbox, "--nccl", **sandbox.with_nccl(nccl_wheels.library(version)))
    assert (status, tuple(found)) == (0, STEPS)
    assert found["load"]["fact"].startswith(f"NCCL {version}, ")


def test_a_job_gets_the_plugin_from_the_file_that_nccl_reads(sandbox: Sandbox) -> None:
    """From 2.23 on, NCCL takes the file from this variable."""
    conf = sandbox.root / "job.conf"
    conf.write_text(f"NCCL_NET_PLUGIN={plugin_path()}\nNCCL_NET=BaguaNet\n")
    status, found = diagnose(sandbox, *named(nccl_wheels.library("2.30.7")), NCCL_CONF_FILE=str(conf))
    assert (status, found["network"]["verdict"]) == (0, "ok")
    assert found["network"]["fact"] == f"BaguaNet, by {conf}"


def test_another_network_is_a_failure_with_its_cause(sandbox: Sandbox) -> None:
    settings = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": str(plugin_path())}
    status, found = diagnose(sandbox, *named(nccl_here.library()), **settings)
    assert (status, found["result"]["verdict"]) == (1, "ok")
    assert found["network"] == {
        "name": "NCCL network",
        "verdict": "fail",
        "fact": "Socket, not BaguaNet: NCCL_NET=Socket (environment) asks for another network",
        "fix": "unset it there",
    }


def test_a_plugin_that_cannot_start_stops_the_job_at_init(sandbox: Sandbox) -> None:
    status, found = diagnose(sandbox, *named(nccl_wheels.library("2.30.7")), BAGUA_NET_NSTREAMS="999")
    assert (status, list(found)) == (1, ["load", "unique id", "init"])
    assert found["init"]["verdict"] == "fail"
    assert "failed: ncclCommInitRank: " in found["init"]["fact"]
    assert "NET/BaguaNet: BAGUA_NET_NSTREAMS=999: not in 0 … 64" in found["init"]["fact"]
    assert found["init"]["fix"].startswith("unset it or use a value in that range")


def test_no_interface_stops_the_job_at_its_id(sandbox: Sandbox) -> None:
    status, found = diagnose(sandbox, *named(nccl_here.library()), NCCL_SOCKET_IFNAME="nosuchif0")
    assert (status, list(found)) == (1, ["load", "unique id"])
    assert "no socket interface found" in found["unique id"]["fact"]
    assert found["unique id"]["fix"]


@pytest.mark.parametrize(
    ("name", "reason"), [("stripped", "has been stripped"), ("crashing", "killed by SIGSEGV"), ("another", "not NCCL")]
)
def test_a_library_that_is_no_nccl_stops_the_job_at_once(sandbox: Sandbox, name: str, reason: str) -> None:
    status, found = diagnose(sandbox, *named(nccl_here.build(sandbox.root, name)))
    assert (status, list(found)) == (1, ["load"])
    assert reason in found["load"]["fact"]
    assert found["load"]["fix"]


def test_a_library_that_is_missing_is_a_finding(sandbox: Sandbox) -> None:
    status, found = diagnose(sandbox, "--nccl", BAGUA_NET_BENCH_LIBNCCL="/nowhere/libnccl.so.2")
    assert (status, found["load"]["fix"]) == (1, "name a libnccl.so.2")


def test_a_variable_that_asks_for_a_gpu_is_a_finding(sandbox: Sandbox) -> None:
    status, found = diagnose(sandbox, *named(nccl_here.library()), NCCL_CUMEM_ENABLE="1")
    assert (status, found["load"]["fix"]) == (1, "unset it or set it to 0")


# ---- faults ----


@pytest.mark.parametrize(
    ("function", "step"),
    variants(("Comm.all_reduce", "allreduce"), nightly=[("Nccl.comm_init_rank", "init"), ("Comm.destroy", "close")]),
)
def test_a_rank_that_dies_is_named_with_its_signal(sandbox: Sandbox, function: str, step: str) -> None:
    """The other one, which waits for it, is not."""
    settings = nccl_here.sabotaged(sandbox.root, function, nccl_here.KILLED)
    status, found = diagnose(sandbox, *named(nccl_here.library()), **settings)
    assert (status, list(found)) == (1, list(STEPS[: STEPS.index(step) + 1]))
    assert found[step]["fact"] == "rank 1 was killed by SIGKILL"


def test_a_wrong_result_is_found(sandbox: Sandbox) -> None:
    """Rank 1 takes part with other data than it should."""
    settings = nccl_here.sabotaged(sandbox.root, "Comm.all_reduce", "arguments[1][:4] = b'abcd'; original(*arguments)")
    status, found = diagnose(sandbox, *named(nccl_here.library()), **settings)
    assert (status, list(found)) == (1, list(STEPS[: STEPS.index("result") + 1]))
    assert "failed: 1 of 262144 elements are wrong" in found["result"]["fact"]


def test_a_job_that_stands_still_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ranks, "TIMEOUT_S", 4.0)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    for name, value in nccl_here.sabotaged(tmp_path, "Comm.all_reduce", "signal.pause()").items():
        monkeypatch.setenv(name, value)
    reports = nccl.job(nccl_here.library(), {})
    assert [report.reason for report in reports.values()] == ["", ""]
    assert all(report.stopped_at <= STEPS.index("allreduce") for report in reports.values())
    assert nccl_ranks.cause(reports).startswith("not done within 4 s: rank ")


def test_what_failed_first_is_the_cause_of_another_rank_s_error() -> None:
    failed, crashed = Report({}, "failed"), Report({}, "crashed", crashed=True)
    lost = Report({}, "lost rank 1", followed=True)
    assert nccl_ranks.cause({"rank 0": failed, "rank 1": crashed}) == "rank 1 crashed"
    assert nccl_ranks.cause({"rank 0": lost, "rank 1": failed}) == "rank 1 failed"
    assert nccl_ranks.cause({"rank 0": lost, "rank 1": Report({})}) == "rank 0 lost rank 1"
    told = Report({}, "failed: NET/BaguaNet: its reason")
    assert nccl_ranks.cause({"rank 0": failed, "rank 1": told}) == "rank 1 failed: NET/BaguaNet: its reason"


def test_a_rank_that_lost_another_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NCCL's code for that, 6."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    lost = nccl_here.sabotaged(tmp_path, "Nccl.comm_init_rank", "raise emulated.NcclFailed('lost', 'its function', 6)")
    monkeypatch.setenv("PYTHONPATH", lost["PYTHONPATH"])
    report = nccl.job(nccl_here.library(), {})["rank 1"]
    assert (report.reason, report.followed, report.crashed) == ("failed: lost", True, False)


def test_who_has_not_ended_is_named() -> None:
    """Of those that came least far."""
    loaded = Report({"load": "", "unique id": ""})
    reports = {"rank 0": loaded, "rank 1": Report({**loaded.facts, "init": ""}), "rank 2": loaded}
    assert nccl_ranks.cause(reports) == "not done within 60 s: rank 0, rank 2"


def test_the_doctor_itself_loads_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    before = discovery.mapped_in_process()
    (check,) = nccl.checks(str(nccl_here.library()))
    assert [finding.verdict for finding in check()] == ["ok"] * len(STEPS)
    assert discovery.mapped_in_process() == before
