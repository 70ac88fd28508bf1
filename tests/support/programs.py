# SPDX-License-Identifier: MIT
"""Python programs of the tests, which other processes run: ``python -m tests.FOLDER.NAME`` with this PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def search_path(*first: Path) -> str:
    """PYTHONPATH: these directories, the one with the package ``tests``, and what the variable names already."""
    return os.pathsep.join([*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
