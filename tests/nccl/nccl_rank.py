# SPDX-License-Identifier: MIT
"""The rank's side of :mod:`nccl_job`.

    def main() -> None:
        rank = nccl_rank.join()
        comm = rank.communicator()
        for task in rank.tasks():
            rank.reply(do(task, comm))
        comm.destroy()

One thread of the process may use a Rank.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bagua_net._machine.parent import die_with
from tests.nccl import emulated


@dataclass(frozen=True)
class Seat:
    """What a rank is told when it starts, as JSON in its only argument."""

    rank: int
    ranks: int
    nccl: str
    """Path of libnccl.so.2."""
    emulator: str
    """Path; "" for that of the package."""
    replies: int
    """A descriptor to write to. Tasks come on stdin."""
    parent: int
    """Process id."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Seat:
        return Seat(**json.loads(text))


class Rank:
    """This process's place in its job, and its NCCL."""

    def __init__(self, seat: Seat) -> None:
        self.rank = seat.rank
        self.ranks = seat.ranks
        self.nccl = emulated.open(Path(seat.nccl), Path(seat.emulator) if seat.emulator else None)
        self._replies = seat.replies
        self._heard: dict[str, deque[Any]] = {"task": deque(), "agreed": deque()}

    def tasks(self) -> Iterator[Any]:
        """The tasks, until there are no more."""
        while self._hear("task"):
            yield self._heard["task"].popleft()

    def reply(self, value: Any) -> None:
        self._say("reply", value)

    def agree(self, value: Any, root: int = 0) -> Any:
        """The root's value, on all ranks. The launcher carries it, while it waits for a reply."""
        if self.rank == root:
            self._say("agree", value)
            return value
        if not self._hear("agreed"):
            sys.exit("the job ended before its ranks agreed")
        return self._heard["agreed"].popleft()

    def unique_id(self, root: int = 0) -> bytes:
        """One that the root makes, on all ranks."""
        made = self.nccl.get_unique_id().hex() if self.rank == root else None
        return bytes.fromhex(self.agree(made, root))

    def communicator(self) -> emulated.Comm:
        """A new one of all ranks, which all call this."""
        return self.nccl.comm_init_rank(self.ranks, self.unique_id(), self.rank)

    def _say(self, kind: str, value: Any) -> None:
        data = json.dumps([kind, value]).encode() + b"\n"
        while data:
            data = data[os.write(self._replies, data) :]

    def _hear(self, kind: str) -> bool:
        """Waits for something of this kind; False at the end."""
        while not self._heard[kind]:
            line = sys.stdin.readline()
            if not line:
                return False
            heard, value = json.loads(line)
            self._heard[heard].append(value)
        return True


def join() -> Rank:
    """The rank that this process was started as."""
    seat = Seat.from_json(sys.argv[1])
    die_with(seat.parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the launcher aborts ranks that hang, to see their stacks
    return Rank(seat)
