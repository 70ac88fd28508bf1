#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures allreduce of NCCL itself on GPUs, over the plugin and over NCCL's own sockets in turn."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: this folder is on sys.path, and the package is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.gpu.allreduce import main

if __name__ == "__main__":
    sys.exit(main())
