# SPDX-License-Identifier: MIT
"""One rank: a process that ``launch`` starts with a :class:`job.Task` as its argument. It leaves a report in a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bagua_net._machine.parent import die_with

from . import collectives, communicators, counters, training
from .job import Task
from .member import Member

#: A rank's function by the program's name; it returns the result for the report.
PROGRAMS: dict[str, Callable[[Member], Any]] = {
    "collectives": collectives.run,
    "graph": communicators.graph,
    "split": communicators.split,
    "several": communicators.several,
    "abort": communicators.abort,
    "ddp": training.ddp,
    "fsdp": training.fsdp,
}


def _versions(task: Task) -> dict[str, str]:
    if task.job.device != "cuda":
        return {"torch": torch.__version__}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"torch": torch.__version__, "nccl": nccl, "gpu": torch.cuda.get_device_name()}


def main() -> None:
    task = Task.from_json(sys.argv[1])
    die_with(task.parent)
    start = time.monotonic()
    member = Member(task)
    report = {
        "rank": task.rank,
        "result": PROGRAMS[task.job.program](member),
        "counters": counters.read(),
        "seconds": time.monotonic() - start,
        "versions": _versions(task),
    }
    (Path(task.directory) / f"report-{task.rank}.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
