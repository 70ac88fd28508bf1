# SPDX-License-Identifier: MIT
"""A file of readings in lines of JSON: the first describes the run (:func:`about.this_run`), each further one is a
reading."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Reading = dict[str, Any]


def load(path: Path) -> tuple[Reading, list[Reading]]:
    head, *readings = (json.loads(line) for line in path.read_text().splitlines())
    return head, readings


def text(head: Reading, readings: Iterable[Reading]) -> str:
    return "".join(json.dumps(line) + "\n" for line in (head, *readings))
