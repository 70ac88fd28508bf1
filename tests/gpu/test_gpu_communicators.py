# SPDX-License-Identifier: MIT
"""Other uses of communicators than one collective after another, over the plugin."""

from __future__ import annotations

import pytest

from tests.gpu.gpu_jobs.job import Job
from tests.gpu.gpu_jobs.places import Run

pytestmark = pytest.mark.gate


def test_a_captured_graph_can_be_replayed(run: Run) -> None:
    for report in run(Job("graph", 2)).reports:
        assert report["result"]["replays"]
        assert all(report["result"]["replays"])


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_halves_of_a_communicator_work_beside_each_other(run: Run, device: str) -> None:
    outcome = run(Job("split", 4, device))
    for report in outcome.reports:
        result = report["result"]
        assert all(result["whole"] + result["parts"])
        if device == "cuda":
            assert result["splits"] > 0, "torch made the halves without ncclCommSplit"
    if device == "cuda":
        assert all(log.splits > 0 for log in outcome.logs)
        assert all(log.networks == {"BaguaNet"} for log in outcome.logs)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_several_communicators_at_once(run: Run, device: str) -> None:
    for report in run(Job("several", 2, device)).reports:
        assert all(report["result"]["right"])
        assert report["counters"]["messages_sent"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_process_goes_on_after_it_has_aborted_a_collective(run: Run, device: str) -> None:
    reports = run(Job("abort", 2, device)).reports
    for report in reports:
        assert all(report["result"]["right"])
    assert reports[0]["result"]["hung"], "no collective was in progress when it was aborted"
    assert all(reports[0]["result"]["hung"])
