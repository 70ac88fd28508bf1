# SPDX-License-Identifier: MIT
"""Jobs on CUDA with real NCCL, and on the CPU, where the same programs are tested without a GPU."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.gpu.gpu_jobs import launch, proof
from tests.gpu.gpu_jobs.job import Job
from tests.gpu.gpu_jobs.places import SECONDS, Run, gpus, obstacle


def pytest_addoption(parser: pytest.Parser) -> None:
    """Has an effect only where this directory is named on the command line."""
    parser.addoption("--jobs-file", type=Path, help="gets a line of JSON for each job of tests/gpu, as it ends")


def _ranks(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    return int(callspec.params.get("ranks", 2)) if callspec else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The collectives of two ranks tell most and run first; jobs of many ranks take longest and run last: the time on a
    GPU may be short."""
    here = Path(__file__).parent
    own = iter(sorted((item for item in items if here in item.path.parents), key=_ranks))
    items[:] = [next(own) if here in item.path.parents else item for item in items]


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a job, once per session: several tests look at the same one. Skips the test where the job cannot run."""

    file = request.config.getoption("--jobs-file", None)

    @functools.cache
    def attempt(program: str, ranks: int, device: str, plugin: bool) -> launch.Outcome | launch.JobFailed:
        job = Job(program, ranks, device, plugin)
        found = gpus() if device == "cuda" else ()
        assert not isinstance(found, str)
        came: launch.Outcome | launch.JobFailed
        try:
            came = launch.run(job, tmp_path_factory.mktemp(job.name), SECONDS, found)
        except launch.JobFailed as failure:
            came = failure
        if file is not None:
            proof.append(file, job, came)
        return came

    def run_once(job: Job) -> launch.Outcome:
        reason = obstacle(job)
        if reason:
            pytest.skip(reason)
        outcome = attempt(job.program, job.ranks, job.device, job.plugin)
        if isinstance(outcome, launch.JobFailed):
            pytest.fail(str(outcome), pytrace=False)
        return outcome

    return run_once
