#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the bagua_net backend of torch.distributed against gloo. README.md in this folder tells how to run it."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: this folder is on sys.path, and the package is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.run.command import Program, main
from benchmarks.run.scenarios import TORCH

if __name__ == "__main__":
    sys.exit(main(Program("torch_allreduce", (__doc__ or "").splitlines()[0], (TORCH,), "-torch")))
