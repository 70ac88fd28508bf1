#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times training up to an accuracy, with algorithms and with exact averages. More: README.md in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: this folder is on sys.path, and the package is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.curves.run import main

if __name__ == "__main__":
    sys.exit(main())
