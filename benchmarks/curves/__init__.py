# SPDX-License-Identifier: MIT
"""How fast accuracy rises over a network, with the tasks and rows that ``accuracy`` makes importable."""

from __future__ import annotations

import benchmarks.accuracy  # noqa: F401
