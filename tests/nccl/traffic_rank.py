# SPDX-License-Identifier: MIT
"""A rank of the jobs in test_networks.py and test_sanitized.py: calls whose every element is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nccl import nccl_rank, rank_tools
from tests.nccl.emulated import Comm, DataType, Stream
from tests.nccl.nccl_rank import Rank
from tests.nccl.rank_tools import Reduction


class Program:
    def __init__(self) -> None:
        self._rank: Rank = nccl_rank.join()
        self._comm: Comm = self._rank.communicator()
        self._stream: Stream = self._rank.nccl.stream()

    def run(self) -> None:
        for task in self._rank.tasks():
            options = {name: value for name, value in task.items() if name != "do"}
            self._rank.reply(getattr(self, task["do"])(**options))
        self._comm.destroy()
        self._stream.destroy()

    def sums(self, counts: list[int], times: int = 1) -> int:
        """Allreduces one after another, without a wait in between; the number of wrong elements."""
        calls: list[Reduction] = []
        for turn in range(times):
            for count in counts:
                calls.append(Reduction(self._comm, self._rank.ranks, self._rank.rank, self._stream, count, turn))
        self._stream.synchronize()
        return sum(call.wrong() for call in calls)

    def exchange(self, counts: list[int]) -> int:
        """Groups of sends to all ranks and receives from all; the number of wrong elements."""
        wrong = 0
        for count in counts:
            given = [rank_tools.pattern(count, self._rank.rank, to) for to in range(self._rank.ranks)]
            taken = [np.zeros(count, np.float32) for _ in given]
            with self._rank.nccl.group():
                for peer in range(self._rank.ranks):
                    self._comm.send(given[peer], count, DataType.FLOAT32, peer, self._stream)
                    self._comm.recv(taken[peer], count, DataType.FLOAT32, peer, self._stream)
            self._stream.synchronize()
            for peer, found in enumerate(taken):
                wrong += rank_tools.wrong(found, rank_tools.pattern(count, peer, self._rank.rank))
        return wrong


def main() -> None:
    program: Any = Program()
    program.run()


if __name__ == "__main__":
    main()
