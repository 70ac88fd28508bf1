# SPDX-License-Identifier: MIT
"""Every collective of torch over NCCL gives the exact result, and the plugin carried its data."""

from __future__ import annotations

import pytest

from tests.gpu.gpu_jobs import plan
from tests.gpu.gpu_jobs.job import Job
from tests.gpu.gpu_jobs.places import Run

PLACES = [
    pytest.param("cpu", 2, id="cpu-2"),
    *(pytest.param("cuda", ranks, id=f"cuda-{ranks}") for ranks in plan.EFFORTS),
]


@pytest.mark.parametrize(("device", "ranks"), PLACES)
def test_every_result_is_exact(run: Run, device: str, ranks: int) -> None:
    reports = run(Job("collectives", ranks, device)).reports
    wrong = [
        f"rank {report['rank']}: {line}" for report in reports for row in report["result"] for line in row["wrong"]
    ]
    assert wrong == []
    for report in reports:
        done = {row["setting"]: row["cases"] for row in report["result"]}
        amount = plan.effort(ranks, device)
        assert done == {each.name: len(plan.cases(each, amount)) for each in plan.settings(device)}


@pytest.mark.parametrize(("device", "ranks"), PLACES)
def test_the_library_counted_the_bytes(run: Run, device: str, ranks: int) -> None:
    """At least the bytes that every algorithm needs."""
    reports = run(Job("collectives", ranks, device)).reports
    for number, setting in enumerate(plan.settings(device)):
        sent = sum(report["result"][number]["bytes_sent"] for report in reports)
        assert sent >= plan.least_bytes(setting, plan.effort(ranks, device), ranks), setting.name
    for report in reports:
        assert report["counters"]["messages_received"] > 0


@pytest.mark.parametrize("ranks", plan.EFFORTS)
def test_nccl_says_that_it_used_the_plugin(run: Run, ranks: int) -> None:
    outcome = run(Job("collectives", ranks))
    for rank, log in enumerate(outcome.logs):
        assert log.networks == {"BaguaNet"}, f"rank {rank}"
        assert set(log.connections) == {"BaguaNet"}, f"rank {rank}"
        assert log.plugin, f"rank {rank}"


@pytest.mark.parametrize("ranks", plan.EFFORTS)
def test_nccl_used_the_protocols_and_algorithms_that_it_was_told(run: Run, ranks: int) -> None:
    outcome = run(Job("collectives", ranks))
    said = frozenset[tuple[str, str]]().union(*(log.choices for log in outcome.logs))
    if not said:
        pytest.skip(f"NCCL {outcome.reports[0]['versions']['nccl']} does not say what it chose")
    assert {(each.algo.upper(), each.proto.upper()) for each in plan.SETTINGS if each.algo} <= said


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_the_plugin_it_is_not_there(run: Run, device: str) -> None:
    """Shows that the counts and logs in the tests above depend on the plugin."""
    outcome = run(Job("several", 2, device, plugin=False))
    assert [report["counters"] for report in outcome.reports] == [None, None]
    if device == "cuda":
        for log in outcome.logs:
            assert log.networks == {"Socket"}
            assert not log.plugin
