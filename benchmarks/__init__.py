# SPDX-License-Identifier: MIT
"""The measuring track. README.md in this folder tells how to run it.

Importing any module of this package makes ``bagua_net`` of this repository importable, behind an installed one, which
brings its library along.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Of the repository."""

sys.path.append(str(ROOT / "python"))
