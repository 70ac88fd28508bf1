# SPDX-License-Identifier: MIT
"""What is compared: the rows of ``tests/algorithms/convergence.py``, and exact averages with the same optimizers."""

from __future__ import annotations

from tests.algorithms.convergence import BACKENDS, ROWS, Row, Run, Training
from tests.algorithms.tasks import TASKS, judged

__all__ = ["BACKENDS", "TASKS", "Row", "Run", "Training", "exact_of", "judged", "rows", "sides"]

#: Exact as well, or nearly the same as another row.
_LEFT_OUT = ("allreduce", "allreduce, by nodes", "ByteGrad, 8 bits")


def exact_of(row: Row, task: str) -> str:
    """The name of what a row is compared with."""
    return f"exact, {row.exact().optimizer or TASKS[task].optimizer}"


def rows(task: str) -> dict[str, Row]:
    """By name."""
    return {exact_of(row, task): row.exact() for row in ROWS} | {row.label: row for row in ROWS}


def sides(task: str, part_of_name: str = "") -> list[str]:
    """A backend and a row. Exact averages are read over both, the others over bagua_net."""
    found: dict[str, None] = {}
    for row in ROWS:
        if row.label not in _LEFT_OUT and part_of_name in row.label:
            found |= dict.fromkeys(f"{backend} {exact_of(row, task)}" for backend in reversed(BACKENDS))
            found[f"bagua_net {row.label}"] = None
    return list(found)
