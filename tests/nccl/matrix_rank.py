# SPDX-License-Identifier: MIT
"""One rank of a row of the matrix: makes communicators, and runs the cells that it is told.

Tasks: {"open": {NAME: value or null}} makes a communicator with these variables; {"cells": [...]} runs cells and
replies with (number, what is wrong) of each that is; {"refused": cell} replies with NCCL's error; {"close": true}
releases the communicator.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.nccl import nccl_rank
from tests.nccl.matrix_calls import Calls
from tests.nccl.matrix_cells import Cell


class _Member:
    """The rank and its communicator."""

    def __init__(self) -> None:
        self._rank = nccl_rank.join()
        self._number = 0

    def serve(self) -> None:
        for task in self._rank.tasks():
            ((name, argument),) = task.items()
            self._rank.reply(getattr(self, f"_{name}")(argument))

    def _open(self, variables: dict[str, str | None]) -> None:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._comm = self._rank.communicator()
        self._calls = Calls(self._rank.nccl, self._comm, self._rank.rank, self._rank.ranks)

    def _cells(self, told: list[dict[str, Any]]) -> list[tuple[int, str]]:
        cells = [Cell.from_json(each) for each in told]
        self._number += 1
        print(f"task {self._number}: {len(cells)} cells from {cells[0].name}", file=sys.stderr)
        return list(self._calls.run(cells))

    def _refused(self, told: dict[str, Any]) -> str:
        return self._calls.refusal(Cell.from_json(told))

    def _close(self, _: bool) -> None:
        self._calls.close()
        self._comm.destroy()


if __name__ == "__main__":
    _Member().serve()
