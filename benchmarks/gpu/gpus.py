# SPDX-License-Identifier: MIT
"""The GPUs of a machine, in the words that a table needs, and how several ranks share one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
_SECONDS = 30

Gpu = dict[str, str | int]


def parse(table: str) -> list[Gpu]:
    """The rows that nvidia-smi prints: name, MiB of memory, version of the driver."""
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines() if line.strip()]
    return [{"name": name, "memory_mib": int(memory), "driver": driver} for name, memory, driver in rows]


def describe() -> list[Gpu]:
    """Empty without a GPU, or without nvidia-smi."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse(done.stdout)


def sharing(environment: Mapping[str, str] = os.environ) -> str:
    """How ranks use the same GPU: at once, by NVIDIA's multi-process service, or in turns."""
    served = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
    return "the multi-process service" if served else "time slices"
