# SPDX-License-Identifier: MIT
"""A rank of the jobs in :mod:`faults`: it does what it is told, and says what NCCL answers. Times are the machine's
monotonic clock, the same for all ranks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

from tests.nccl import nccl_rank, rank_tools
from tests.nccl.emulated import IN_PROGRESS, Comm, DataType, RedOp, Stream
from tests.nccl.rank_tools import Floats, Reduction

#: More than a machine carries before a fault that follows the end of the first call; where the calls must also end,
#: fewer.
_FLOOD_CALLS, _FEWER_CALLS = 48, 16
_FLOOD_COUNT = 16 << 20
_SMALL_COUNT = 50_000
_PATIENCE_SECONDS = 120.0
#: For threads that end after the call that told them to.
_SETTLING_SECONDS = 10.0


class Program:
    _comm: Comm
    _stream: Stream
    _taken: Floats

    def __init__(self) -> None:
        self._rank = nccl_rank.join()
        self._kept: list[Floats] = []  # memory of calls that may never end
        self._before: dict[str, Any] = {}

    def run(self) -> None:
        for task in self._rank.tasks():
            options = {name: value for name, value in task.items() if name != "do"}
            self._rank.reply(getattr(self, task["do"])(**options))
        os._exit(0)  # a thread may be in a call that never returns

    # ---- before a fault ----

    def warm(self) -> int:
        """A communicator from its beginning to its end: what the process holds afterwards is its own. The number of
        wrong elements."""
        wrong = self.connect()
        before = rank_tools.held()
        self._comm.destroy()
        self._stream.destroy()
        rank_tools.wait_until(lambda: rank_tools.held()["threads"] < before["threads"] - 1, _SETTLING_SECONDS)
        self._before = rank_tools.steady()
        return wrong

    def connect(self) -> int:
        """A communicator of all ranks, after a call; the number of wrong elements."""
        self._comm, self._stream = self._rank.communicator(), self._rank.nccl.stream()
        reduction = Reduction(self._comm, self._rank.ranks, self._rank.rank, self._stream, _SMALL_COUNT)
        self._stream.synchronize()
        return reduction.wrong()

    def begin(self, ranks: int, unique_id: str = "") -> str:
        """A communicator that this rank does not wait for, and its id. There may be more ranks than the job has."""
        made = bytes.fromhex(unique_id) if unique_id else self._rank.nccl.get_unique_id()
        self._stream = self._rank.nccl.stream()
        self._comm = rank_tools.begin_comm(self._rank.nccl, ranks, made, self._rank.rank)
        return made.hex()

    # ---- calls ----

    def _call(self, count: int, calls: int = 1) -> None:
        given, self._taken = np.full(count, 1.0, np.float32), np.zeros(count, np.float32)
        self._kept += [given, self._taken]
        for _ in range(calls):
            self._comm.all_reduce(given, self._taken, count, DataType.FLOAT32, RedOp.SUM, self._stream)

    def flood(self, signal_name: str = "", fewer: bool = False) -> float:
        """More allreduces than end soon. Replies with the time when the first one has ended; then the process sends
        itself that signal, and if it goes on, replies again."""
        self._call(_FLOOD_COUNT, _FEWER_CALLS if fewer else _FLOOD_CALLS)
        if not rank_tools.wait_until(lambda: self._taken[-1] == self._rank.ranks, _PATIENCE_SECONDS):
            raise TimeoutError("no call ended")
        if self._stream.done():
            raise RuntimeError("all calls ended before the fault")
        if signal_name:
            self._rank.reply(time.monotonic())
            os.kill(os.getpid(), getattr(signal, signal_name))
        return time.monotonic()

    def flood_and_watch(self, seconds: float, fewer: bool = False) -> dict[str, Any]:
        self._call(_FLOOD_COUNT, _FEWER_CALLS if fewer else _FLOOD_CALLS)
        return self.watch(seconds)

    def call_and_watch(self, counts: list[int], seconds: float) -> dict[str, Any]:
        """An allreduce of so many elements on each rank."""
        self._call(counts[self._rank.rank])
        return self.watch(seconds)

    # ---- what NCCL says ----

    def watch(self, seconds: float) -> dict[str, Any]:
        """The communicator's state until it is an error, nothing is under way, or the time is over."""
        deadline = time.monotonic() + seconds
        code = 0
        while code in (0, IN_PROGRESS) and time.monotonic() < deadline and not self._stream.done():
            time.sleep(0.002)
            code = self._comm.get_async_error()
        return {"code": code, "at": time.monotonic(), "done": self._stream.done(), "said": self._comm.last_error()}

    def watch_beginning(self, seconds: float) -> dict[str, Any]:
        """The state of a communicator that was begun: IN_PROGRESS while it is not ready."""
        rank_tools.wait_until(lambda: self._comm.get_async_error() != IN_PROGRESS, seconds)
        code = self._comm.get_async_error()
        return {"code": code, "at": time.monotonic(), "done": False, "said": self._comm.last_error()}

    # ---- afterwards ----

    def finish(self) -> int:
        """Waits for the calls; the number of wrong elements of the last one."""
        self._stream.synchronize()
        return int((self._taken != self._rank.ranks).sum())

    def shrink(self, excluded: list[int]) -> dict[str, Any]:
        """Goes on without these ranks: NCCL's code, and the number of wrong elements of a sum."""
        fewer: list[Comm] = []
        done = rank_tools.attempt(lambda: fewer.append(self._comm.shrink(excluded, abort=True)), _PATIENCE_SECONDS)
        if not fewer:
            return {"code": done["code"], "wrong": 0}
        stream = self._rank.nccl.stream()
        reduction = Reduction(fewer[0], fewer[0].nranks, fewer[0].rank, stream, _SMALL_COUNT)
        stream.synchronize()
        fewer[0].destroy()
        stream.destroy()
        return {"code": done["code"], "wrong": reduction.wrong()}

    def end(self, how: str, seconds: float, settling: float = _SETTLING_SECONDS) -> dict[str, Any]:
        """The communicator's end by abort or destroy: NCCL's code, None where the call does not return in time; what
        the stream says; and what the process holds more than before, [then, now] by its kind."""
        done = rank_tools.attempt(getattr(self._comm, how), seconds)
        if done["code"] is None:
            return {**done, "stream": None, "left": {}}
        stream = rank_tools.attempt(self._stream.synchronize, seconds)["code"]
        self._stream.destroy()
        after = rank_tools.settled(self._before, settling)
        return {**done, "stream": stream, "left": rank_tools.left(self._before, after)}


if __name__ == "__main__":
    Program().run()
