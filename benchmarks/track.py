#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the transport against NCCL's own on this machine. README.md in this folder tells how to run it."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: this folder is on sys.path, and the package is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.run.command import Program, main
from benchmarks.run.scenarios import SCENARIOS, TORCH

if __name__ == "__main__":
    names = tuple(scenario.name for scenario in SCENARIOS if scenario.name != TORCH)
    sys.exit(main(Program("track", (__doc__ or "").splitlines()[0], names)))
