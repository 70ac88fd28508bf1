#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the bagua_net backend of torch.distributed against gloo. README.md beside this file tells how to run it."""

from __future__ import annotations

import sys

from scenarios import TORCH
from track import Program, main

if __name__ == "__main__":
    sys.exit(main(Program("torch_allreduce", (__doc__ or "").splitlines()[0], (TORCH,), "-torch")))
