# SPDX-License-Identifier: MIT
"""Runs every job, the most telling ones first, on a machine that lacks pytest.

    python3 -m tests.gpu.gpu_jobs FILE DIRECTORY [--device cuda|cpu] [--seconds N]

FILE gets a line of JSON for each job as it ends, DIRECTORY the output of its ranks, and stdout the verdict. The tests
in the directory above check more closely.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import launch, proof
from .job import Job
from .places import SECONDS, gpus, obstacle

#: Program, ranks, and whether it uses the plugin.
JOBS = (
    ("collectives", 2, True),
    ("ddp", 2, True),
    ("fsdp", 2, True),
    ("several", 2, True),
    ("split", 4, True),
    ("abort", 2, True),
    ("graph", 2, True),
    ("ddp", 2, False),
    ("fsdp", 2, False),
    ("several", 2, False),
    ("collectives", 4, True),
    ("collectives", 8, True),
)


def jobs(device: str) -> list[Job]:
    """The jobs that the device can run: graphs need CUDA, and eight ranks are too many for a CPU."""
    made = [Job(program, ranks, device, plugin) for program, ranks, plugin in JOBS]
    return [job for job in made if device == "cuda" or (job.program != "graph" and job.ranks < 8)]


def attempt(job: Job, directory: Path, seconds: float) -> launch.Outcome | launch.JobFailed:
    found = gpus() if job.device == "cuda" else ()
    assert not isinstance(found, str)
    directory.mkdir(parents=True)
    try:
        return launch.run(job, directory, seconds, found)
    except launch.JobFailed as failure:
        return failure


def look(job: Job, options: argparse.Namespace, seconds: float) -> list[str]:
    """Runs a job, records its outcome, and reports what is wrong with it."""
    if seconds < 1:
        return ["the time is over"]
    came = attempt(job, options.directory / job.name, min(SECONDS, seconds))
    proof.append(options.file, job, came)
    return proof.wrong(proof.row(job, came))


def main() -> int:
    """0: all jobs that can run here passed; 1: one failed, or none can run."""
    parser = argparse.ArgumentParser(prog="tests.gpu.gpu_jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("directory", type=Path, help="an empty one, or none yet")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of them (%(default)s)")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for job in jobs(options.device):
        reason = obstacle(job)
        problems = [reason] if reason else look(job, options, deadline - time.monotonic())
        verdict = "skipped" if reason else "failed" if problems else "passed"
        count[verdict] += 1
        print(f"{verdict} {job.name}", *problems, sep="\n", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return 0 if count["passed"] and not count["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
