# SPDX-License-Identifier: MIT
"""A rank of the jobs in test_lifecycle.py: communicators that live beside and after each other. A task names a function
here. Its reply has what that returns, mostly the number of wrong elements, and what the process holds more than before,
when it had already had one communicator."""

from __future__ import annotations

import ctypes
import random
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np

from tests.nccl import emulated, nccl_rank, rank_tools
from tests.nccl.emulated import IN_PROGRESS, Comm, DataType, RedOp, Stream
from tests.nccl.nccl_rank import Rank
from tests.nccl.rank_tools import Reduction

SMALL, MEDIUM, LARGE = 3_000, 100_000, 1_000_000
_FLOOD_CALLS = 48
_SECONDS = 120.0
#: For threads that end after the call that told them to.
_SETTLING_SECONDS = 10.0


class Pair:
    """A communicator and a stream of its own."""

    def __init__(self, comm: Comm, stream: Stream) -> None:
        self.comm, self.stream = comm, stream
        self._open: list[Reduction] = []

    def start(self, count: int, turn: int = 0, stream: Stream | None = None) -> None:
        self._open.append(Reduction(self.comm, self.comm.nranks, self.comm.rank, stream or self.stream, count, turn))

    def wrong(self) -> int:
        """Waits for the stream; the number of wrong elements of all that was started."""
        self.stream.synchronize()
        found = sum(reduction.wrong() for reduction in self._open)
        self._open.clear()
        return found

    def destroy(self) -> None:
        self.comm.destroy()
        self.stream.destroy()


def pair(rank: Rank, comm: Comm | None = None) -> Pair:
    return Pair(comm or rank.communicator(), rank.nccl.stream())


# ---- several at a time ----


def interleaved(rank: Rank, comms: int = 3, calls: int = 15) -> int:
    """Calls of several communicators in changing order, which are destroyed in another order on each rank."""
    pairs = [pair(rank) for _ in range(comms)]
    order = random.Random(7)
    for turn in range(calls):
        order.choice(pairs).start(order.choice([SMALL, MEDIUM]), turn)
    wrong = sum(each.wrong() for each in pairs)
    random.Random(rank.rank).shuffle(pairs)
    for each in pairs:
        each.destroy()
    return wrong


def destroyed_beside_busy(rank: Rank) -> int:
    """One is destroyed, and a new one made, while another one's calls are under way."""
    busy, idle = pair(rank), pair(rank)
    idle.start(SMALL)
    wrong = idle.wrong()
    for turn in range(4):
        busy.start(LARGE, turn)
    idle.destroy()
    later = pair(rank)
    later.start(MEDIUM)
    wrong += later.wrong() + busy.wrong()
    busy.destroy()
    later.destroy()
    return wrong


def several_streams(rank: Rank) -> int:
    """Calls of one communicator on changing streams."""
    first = pair(rank)
    streams = [first.stream, rank.nccl.stream(), rank.nccl.stream()]
    for turn in range(18):
        first.start(MEDIUM if turn % 3 else SMALL, turn, streams[turn % 3])
    for stream in streams[1:]:
        stream.synchronize()
    wrong = first.wrong()
    for stream in streams[1:]:
        stream.destroy()
    first.destroy()
    return wrong


def grouped(rank: Rank) -> int:
    """A group that makes two communicators, and groups of calls of both."""
    ids = [rank.unique_id(), rank.unique_id()]
    with rank.nccl.group():
        comms = [rank.nccl.comm_init_rank(rank.ranks, each, rank.rank) for each in ids]
    pairs = [pair(rank, comm) for comm in comms]
    for turn in range(6):
        with ExitStack() as stack:
            stack.enter_context(rank.nccl.group())
            for each in pairs if turn % 2 else reversed(pairs):
                each.start(MEDIUM, turn)
                each.start(SMALL, turn + 1)
    wrong = sum(each.wrong() for each in pairs)
    for each in pairs:
        each.destroy()
    return wrong


def networks(rank: Rank, names: list[str | None], calls: int = 6) -> int:
    """Communicators side by side, each with the network that it names, and their calls in turn."""
    pairs = [
        pair(rank, rank_tools.comm_with_network(rank.nccl, rank.ranks, rank.unique_id(), rank.rank, name))
        for name in names
    ]
    for turn in range(calls):
        for each in pairs:
            each.start(MEDIUM if turn % 2 else SMALL, turn)
    wrong = sum(each.wrong() for each in pairs)
    for each in pairs:
        each.destroy()
    return wrong


def threads(rank: Rank, rounds: int = 3) -> int:
    """A thread that makes and destroys communicators beside one that uses another."""
    ids = [rank.unique_id() for _ in range(rounds)]
    steady = pair(rank)
    wrong = [0, 0]
    stop = threading.Event()

    def come_and_go() -> None:
        for number, each in enumerate(ids):
            new = pair(rank, rank.nccl.comm_init_rank(rank.ranks, each, rank.rank))
            new.start(MEDIUM, number)
            wrong[0] += new.wrong()
            new.destroy()
        stop.set()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    # Each round is agreed upon by a sum, or the ranks would differ in the number of their calls.
    going, turn = np.ones(1, np.float32), 0
    while going[0] > 0:
        steady.start(MEDIUM, turn)
        wrong[1] += steady.wrong()
        going[0] = 0.0 if stop.is_set() else 1.0
        steady.comm.all_reduce(going, going, 1, DataType.FLOAT32, RedOp.SUM, steady.stream)
        steady.stream.synchronize()
        turn += 1
    thread.join()
    steady.destroy()
    return sum(wrong)


# ---- communicators that come from others ----


def split(rank: Rank) -> int:
    """Halves beside their parent; then the parent is destroyed and the halves go on."""
    parent = pair(rank)
    half = pair(rank, parent.comm.split(rank.rank % 2, -rank.rank))
    left_out = rank.rank == rank.ranks - 1
    most = parent.comm.split(emulated.NO_COLOR if left_out else 0, rank.rank)
    assert (most is None) == left_out
    parts = [parent, half] + ([pair(rank, most)] if most else [])
    for turn in range(5):
        for each in parts:
            each.start(MEDIUM, turn)
    wrong = sum(each.wrong() for each in parts)
    parent.destroy()
    for each in parts[1:]:
        each.start(SMALL)
        wrong += each.wrong()
        each.destroy()
    return wrong


def shrink(rank: Rank) -> int:
    """All but the last rank go on without it; it has destroyed its communicator, or does later."""
    parent = pair(rank)
    parent.start(SMALL)
    wrong = parent.wrong()
    if rank.rank < rank.ranks - 1:
        fewer = pair(rank, parent.comm.shrink([rank.ranks - 1]))
        fewer.start(MEDIUM)
        wrong += fewer.wrong()
        fewer.destroy()
    parent.destroy()
    return wrong


def revoke(rank: Rank) -> int:
    """Calls that one rank never makes are ended on the others; what is split off afterwards works."""
    parent = pair(rank)
    parent.start(SMALL)
    wrong = parent.wrong()
    rank_tools.meet(rank)  # it drops what its rank still owes to others
    data = np.zeros(LARGE, np.float32)
    if rank.rank > 0:
        parent.comm.all_reduce(data, data, LARGE, DataType.FLOAT32, RedOp.SUM, parent.stream)
    parent.comm.revoke()
    parent.stream.synchronize()
    child = pair(rank, parent.comm.split(0, rank.rank))
    child.start(MEDIUM)
    wrong += child.wrong()
    child.destroy()
    parent.destroy()
    return wrong


# ---- forms of a life ----


def finalized(rank: Rank) -> int:
    """Finalize waits for what is under way."""
    one = pair(rank)
    for turn in range(4):
        one.start(LARGE, turn)
    one.comm.finalize()
    wrong = one.wrong()
    one.destroy()
    return wrong


def registered(rank: Rank) -> int:
    """A buffer of the user's is registered while it is used."""
    one = pair(rank)
    data = rank_tools.pattern(LARGE, rank.rank)
    registration = one.comm.register(data, data.nbytes)
    one.comm.all_reduce(data, data, LARGE, DataType.FLOAT32, RedOp.SUM, one.stream)
    one.stream.synchronize()
    one.comm.deregister(registration)
    wrong = rank_tools.wrong(data, rank_tools.summed(LARGE, rank.ranks))
    one.destroy()
    return wrong


def _ready(comm: Comm) -> None:
    if not rank_tools.wait_until(lambda: comm.get_async_error() != IN_PROGRESS, _SECONDS):
        raise TimeoutError("the communicator is not ready")
    if (code := comm.get_async_error()) != 0:
        raise comm.failure(code)


def not_blocking(rank: Rank) -> int:
    """No call waits; each is over when the communicator's state says so."""
    comm = rank_tools.begin_comm(rank.nccl, rank.ranks, rank.unique_id(), rank.rank)
    _ready(comm)
    one = pair(rank, comm)
    for turn in range(3):
        one.start(MEDIUM, turn)
        _ready(comm)
    wrong = one.wrong()
    comm.finalize()
    _ready(comm)
    one.destroy()
    return wrong


def _flood(one: Pair) -> np.ndarray[Any, Any]:
    data = np.ones(LARGE, np.float32)
    for _ in range(_FLOOD_CALLS):
        one.comm.all_reduce(data, data, LARGE, DataType.FLOAT32, RedOp.MAX, one.stream)
    return data


def aborted(rank: Rank) -> int:
    """All ranks abort in the middle."""
    one = pair(rank)
    one.start(SMALL)
    wrong = one.wrong()
    rank_tools.meet(rank)  # an abort drops what its rank still owes to others
    data = _flood(one)
    for call in (one.comm.abort, one.stream.synchronize):
        if (code := rank_tools.attempt(call, _SECONDS)["code"]) != 0:
            raise RuntimeError(f"{call}: {code}")
    one.stream.destroy()
    del data  # the kernels have ended
    return wrong


def lives(rank: Rank, times: int = 10, abort: bool = True) -> list[dict[str, Any]]:
    """Communicators one after another, of which every third one is aborted in the middle: the number of wrong elements
    of each, and what the process holds after it."""
    before = rank_tools.held()
    found = []
    for number in range(times):
        if abort and number % 3 == 2:
            wrong = aborted(rank)
        else:
            one = pair(rank)
            one.start(MEDIUM, number)
            wrong = one.wrong()
            one.destroy()
        found.append({"wrong": wrong, **rank_tools.settled(before, _SETTLING_SECONDS)})
    return found


def leave_busy(rank: Rank) -> str:
    """This process's end comes while calls are under way."""
    one = pair(rank)
    one.start(SMALL)
    assert one.wrong() == 0
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_flood(one)))  # the interpreter's end must not free it
    return "done" if one.stream.done() else "busy"


def main() -> None:
    rank = nccl_rank.join()
    warm = pair(rank)
    warm.start(SMALL)
    assert warm.wrong() == 0
    warm.destroy()
    before = rank_tools.steady()
    for task in rank.tasks():
        options = {name: value for name, value in task.items() if name != "do"}
        value = globals()[task["do"]](rank, **options)
        left = {} if task["do"] == "leave_busy" else rank_tools.settled(before, _SETTLING_SECONDS)
        rank.reply({"value": value, "left": rank_tools.difference(before, left) if left else {}})


if __name__ == "__main__":
    main()
