#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the compressed allreduce beside the uncompressed one, and the codecs. README.md in this folder tells more."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: this folder is on sys.path, and the package is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.codecs.run import main

if __name__ == "__main__":
    sys.exit(main())
