# SPDX-License-Identifier: MIT
"""What algorithms cost in accuracy. The tasks, the rows and the training are those of ``tests/algorithms``, which
importing this makes importable."""

from __future__ import annotations

import sys

from benchmarks import ROOT

sys.path += [str(ROOT / "tests" / each) for each in ("algorithms", "torch_backend", "drivers")]
