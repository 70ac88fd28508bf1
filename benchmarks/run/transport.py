# SPDX-License-Identifier: MIT
"""The transport against NCCL's own on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.run.command import Program, run
from benchmarks.run.scenarios import SCENARIOS, TORCH


def main(argv: Sequence[str]) -> int:
    names = tuple(scenario.name for scenario in SCENARIOS if scenario.name != TORCH)
    return run(Program("transport", __doc__, names), argv)
