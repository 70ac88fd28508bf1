# SPDX-License-Identifier: MIT
"""Where jobs can run here, or why they cannot."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

from . import launch
from .job import Job

#: The time limit of a job: on one GPU ranks wait for their turns, and on few cores for each other.
SECONDS = 150

#: The fixture ``run``: runs a job that must succeed.
Run = Callable[[Job], launch.Outcome]


@functools.cache
def gpus() -> tuple[str, ...] | str:
    """The GPUs that torch sees, or why NCCL cannot be tested here."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device here"
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return f"torch {torch.__version__} was built without NCCL"
    return tuple(launch.visible_gpus(torch.cuda.device_count()))


def obstacle(job: Job) -> str:
    """Why the job cannot run here; "": it can."""
    if job.device == "cuda":
        found = gpus()
        return found if isinstance(found, str) else ""
    needed = ("torch", "cffi") if job.plugin else ("torch",)
    return next((f"{module} is not installed" for module in needed if importlib.util.find_spec(module) is None), "")
