# SPDX-License-Identifier: MIT
"""Jobs on CUDA with real NCCL, and on the CPU, where the same programs are tested without a GPU."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from gpu_jobs import launch
from gpu_jobs.job import Job
from gpu_jobs.places import SECONDS, Run, gpus, obstacle


def _ranks(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    return int(callspec.params.get("ranks", 0)) if callspec else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Jobs of many ranks take longest, and come last: the time on a GPU may be short."""
    here = Path(__file__).parent
    own = iter(sorted((item for item in items if here in item.path.parents), key=_ranks))
    items[:] = [next(own) if here in item.path.parents else item for item in items]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a job, once a session: several tests look at the same one. Skips the test where it cannot run."""

    @functools.cache
    def attempt(program: str, ranks: int, device: str, plugin: bool) -> launch.Outcome | launch.JobFailed:
        name = f"{program}-{device}-{ranks}-{'plugin' if plugin else 'own'}"
        found = gpus() if device == "cuda" else ()
        assert not isinstance(found, str)
        try:
            return launch.run(Job(program, ranks, device, plugin), tmp_path_factory.mktemp(name), SECONDS, found)
        except launch.JobFailed as failure:
            return failure

    def run_once(job: Job) -> launch.Outcome:
        reason = obstacle(job)
        if reason:
            pytest.skip(reason)
        outcome = attempt(job.program, job.ranks, job.device, job.plugin)
        if isinstance(outcome, launch.JobFailed):
            pytest.fail(str(outcome), pytrace=False)
        return outcome

    return run_once
