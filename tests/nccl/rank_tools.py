# SPDX-License-Identifier: MIT
"""What the programs of ranks share: data whose sums are known, calls that may not return, what a process holds."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.nccl import emulated
from tests.nccl.emulated import Comm, DataType, NcclFailed, RedOp, Stream
from tests.nccl.nccl_rank import Rank

Floats = NDArray[np.float32]

#: Whole numbers up to here, and sums of a few of them, are exact in float32.
_PERIOD = 65521
#: Between two looks at something that no event announces.
_LOOK_SECONDS = 0.005


def pattern(count: int, rank: int, turn: int = 0) -> Floats:
    """What a rank gives to a reduction: every element depends on its place, the rank and the turn."""
    numbers = np.arange(count, dtype=np.int64)
    return ((numbers * 7 + rank * 1009 + turn * 31) % _PERIOD).astype(np.float32)


def summed(count: int, ranks: int, turn: int = 0) -> Floats:
    """The sum of the ranks' patterns."""
    total: Floats = sum((pattern(count, rank, turn) for rank in range(ranks)), np.zeros(count, np.float32))
    return total


def wrong(found: Floats, expected: Floats) -> int:
    """The number of elements that differ."""
    return int((found != expected).sum())


class Reduction:
    """An allreduce of float32 that has been started."""

    def __init__(self, comm: Comm, ranks: int, rank: int, stream: Stream, count: int, turn: int = 0) -> None:
        self._expected = summed(count, ranks, turn)
        self._given = pattern(count, rank, turn)
        self._taken = np.zeros_like(self._given)
        comm.all_reduce(self._given, self._taken, count, DataType.FLOAT32, RedOp.SUM, stream)

    def wrong(self) -> int:
        """After the stream's end: the number of wrong elements."""
        return wrong(self._taken, self._expected)


def meet(rank: Rank) -> None:
    """Returns when all ranks have called it."""
    for root in range(rank.ranks):
        rank.agree(None, root)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Looks until the condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def attempt(function: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Calls a function on a thread: its ncclResult_t and the seconds that it took. ``code`` is None where it has not
    returned in time; it then goes on until the process ends."""
    result: dict[str, Any] = {"code": None, "seconds": seconds}

    def run() -> None:
        begin = time.monotonic()
        code = 0
        try:
            function()
        except NcclFailed as error:
            code = error.code
        result.update(code=code, seconds=time.monotonic() - begin)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return dict(result)


# ---- what the process holds ----


def _descriptor(entry: Path) -> str:
    try:
        target = str(entry.readlink())
    except OSError:  # the one that lists the directory
        return ""
    return re.sub(r"\[\d+\]|/proc/\d+/fd", "", target)


def held() -> dict[str, Any]:
    """The descriptors by kind, and the numbers of threads and of mappings."""
    kinds = Counter(filter(None, map(_descriptor, Path("/proc/self/fd").iterdir())))
    return {
        "descriptors": dict(sorted(kinds.items())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[int]]:
    """What there is more or less of, by its kind: [before, after]. Mappings do not count: a thread's memory is kept."""
    kinds = sorted(before["descriptors"].keys() | after["descriptors"].keys())
    rows = {kind: [before["descriptors"].get(kind, 0), after["descriptors"].get(kind, 0)] for kind in kinds}
    rows["threads"] = [before["threads"], after["threads"]]
    return {kind: row for kind, row in rows.items() if row[0] != row[1]}


def left(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[int]]:
    """What there is more of. A thread that was ending may still have been there before."""
    return {kind: row for kind, row in difference(before, after).items() if row[1] > row[0]}


def settled(before: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What is held once it is no more than before, or at the end of that time: threads end after the call that told
    them to."""
    wait_until(lambda: not left(before, held()), seconds)
    return held()


def steady(seconds: float = 2.0, looks: int = 20) -> dict[str, Any]:
    """What is held once so many looks in succession have found the same."""
    found: list[dict[str, Any]] = []

    def same() -> bool:
        found.append(held())
        last = found[-looks:]
        return len(last) == looks and not any(difference(last[0], each) for each in last)

    wait_until(same, seconds)
    return found[-1]


# ---- communicators with a configuration ----

emulated.ffi.cdef("""
typedef struct {
    size_t size; unsigned int magic; unsigned int version;
    int blocking; int cgaClusterSize; int minCTAs; int maxCTAs; const char *netName; int splitShare;
} ncclConfig_t;
int ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);
""")

#: Later releases take the structure of this one, and fill in the rest.
_CONFIG_VERSION = 21803
_CONFIG_MAGIC = 0xCAFEBEEF
_UNDEFINED = -(2**31)


def begin_comm(nccl: emulated.Nccl, ranks: int, unique_id: bytes, rank: int) -> Comm:
    """A communicator whose calls do not wait: it is ready when its asynchronous error is no longer IN_PROGRESS."""
    return _configured_comm(nccl, ranks, unique_id, rank, blocking=0)


def comm_with_network(nccl: emulated.Nccl, ranks: int, unique_id: bytes, rank: int, name: str | None) -> Comm:
    """A communicator that asks for a network by ncclConfig_t.netName; None: for none."""
    return _configured_comm(nccl, ranks, unique_id, rank, blocking=1, name=name)


def _configured_comm(
    nccl: emulated.Nccl, ranks: int, unique_id: bytes, rank: int, *, blocking: int, name: str | None = None
) -> Comm:
    ffi = emulated.ffi
    config = ffi.new("ncclConfig_t *")
    config.size, config.magic, config.version = ffi.sizeof("ncclConfig_t"), _CONFIG_MAGIC, _CONFIG_VERSION
    config.blocking = blocking
    config.cgaClusterSize = config.minCTAs = config.maxCTAs = config.splitShare = _UNDEFINED
    kept = ffi.new("char[]", name.encode()) if name is not None else ffi.NULL  # NCCL makes a copy
    config.netName = kept
    given, made = ffi.new("ncclUniqueId *"), ffi.new("ncclComm_t *")
    ffi.memmove(given, unique_id, len(unique_id))
    nccl.call("ncclCommInitRankConfig", made, ranks, given[0], rank, config)
    return Comm(nccl, made[0])
