# SPDX-License-Identifier: MIT
"""all_reduce over the backend bagua_net of torch.distributed, against gloo."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.run.command import Program, run
from benchmarks.run.scenarios import TORCH


def main(argv: Sequence[str]) -> int:
    return run(Program("torch-allreduce", __doc__, (TORCH,), "-torch"), argv)
