# SPDX-License-Identifier: MIT
"""What the threads of this process wait for in its groups, as their stacks show it.

An operation notes nothing but its thread for this: a process is looked at only once nothing has moved in it for
seconds.

Only threads that may start an operation count: the main one, those that have started one, and for a minute any other
one of the program that does something. All of them must wait before a process is called blocked, since any other one
may yet start what a peer waits for.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.futures

from .._torch_internals import named
from ._collectives import Collectives
from ._in_flight import InFlight
from ._request import Request
from ._work import BACKWARD, Message, Work

#: Waits in C++ for what this process does itself: for a thread that serves this one, or for a future of an operation.
#: In the first one, DDP's reducer waits for its buckets.
_WITHIN = {
    BACKWARD: "backward",
    named(torch.futures.Future, "wait").__code__: "a future's wait",
}
#: The same in an algorithm.
_ALGORITHM = ("bagua_net.algorithms._worker", "awaited")
#: Seconds: a program may count on the end of a receive's shorter wait, after which its group goes on.
_SHORT_S = 60.0
#: Frames from a request's wait to that of its work.
_NEAR = 3
#: Whose frames are not the program's.
_LIBRARIES = ("torch", "bagua_net", "lightning", "accelerate", "threading", "contextlib", "functools", "concurrent")
#: Seconds for which a thread that does something may yet start its first operation, such as one that loads a file.
_NEW_S = 60.0
#: Where a thread waits for others of this process, or for what programs of another kind bring.
_IDLE = ("threading", "queue", "selectors", "multiprocessing", "concurrent", "asyncio", "socketserver")

#: Of processor time, of 10 ms each: what a thread may take that waits.
_MOST_TICKS = 1

_first_seen: dict[int, float] = {}  # by a thread's identifier
_ticks: dict[int, int] = {}  # the same


class Wait(NamedTuple):
    """For the next collective of a group, or for a message."""

    in_flight: InFlight  # of the group
    source: int  # of the message, a rank of the group; -1: a collective


class Thread(NamedTuple):
    """One that cannot go on before all of these waits are over."""

    waits: list[Wait]
    where: str  # for people; "": a thread of ours


def frames_of_all() -> dict[int, FrameType]:
    """What each thread of this process executes, by the thread's identifier.

    Before Python 3.12 a garbage collection in the middle of this ends in a deadlock of the process: it runs destructors
    under a lock of the interpreter that they may need, as a thread's start does (CPython issue 106883). So none runs.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def note_threads() -> None:
    """Remembers since when each thread is there."""
    now, present = time.monotonic(), {each.ident for each in threading.enumerate() if each.ident is not None}
    for ident in present - _first_seen.keys():
        _first_seen[ident] = now
    for ident in _first_seen.keys() - present:
        del _first_seen[ident]


def _may_yet_start(ident: int, frame: FrameType) -> bool:
    """One of the program's that has started nothing so far, and does something."""
    since = _first_seen.get(ident)
    if since is None or time.monotonic() - since >= _NEW_S:
        return False
    idle = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _IDLE
    return not idle and _where(frame) != ""


def threads(callers: Iterable[int], works: Iterable[InFlight]) -> list[Thread]:
    """Those that wait; empty where one does not, or nobody can tell.

    Args:
        callers: identifiers of the threads that have started operations.
        works: of all groups.
    """
    serving, main, frames = _serving(), threading.main_thread().ident, frames_of_all()
    if main not in frames:  # it is in C++ that runs no Python
        return []
    starters = {*callers, main} - {ident for ident, busy in serving.items() if not busy}
    if any(_may_yet_start(ident, frame) for ident, frame in frames.items() if ident not in starters):
        return []
    stacks = [(ident, frame) for ident, frame in frames.items() if ident in starters]
    del frames  # this thread's, which has them, is one of them
    inside = [Wait(each, -1) for each in works if each.has_futures()]
    waiting, within = [], []
    for ident, frame in stacks:
        wait = _of(frame)
        if wait is not None:
            waiting.append(Thread([wait], _where(frame)))
            if ident in serving:
                inside.append(wait)
        elif _waits_within(frame):
            if frame.f_code in _WITHIN and _has_computed(ident):
                return []
            within.append(frame)
        else:
            return []
    if within and not inside:
        return []
    return [*waiting, *(Thread(inside, _where(frame)) for frame in within)]


def _has_computed(ident: int) -> bool:
    """Since it was last asked: a backward that computes has the same frame as one that waits."""
    if ident == threading.main_thread().ident:
        number: int | None = os.getpid()  # its native_id is that of the parent, where this process was forked
    else:
        number = next((each.native_id for each in threading.enumerate() if each.ident == ident), None)
    try:
        fields = Path(f"/proc/self/task/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    ticks = int(fields[11]) + int(fields[12])  # of the user and of the system (proc(5))
    before, _ticks[ident] = _ticks.get(ident, 0), ticks
    return ticks - before > _MOST_TICKS


def _waits_within(frame: FrameType) -> bool:
    return frame.f_code in _WITHIN or (frame.f_globals.get("__name__"), frame.f_code.co_name) == _ALGORITHM


def _serving() -> dict[int, bool]:
    """Threads that carry out what others of this process ask for, and start nothing of their own: are they busy?"""
    threads = threading.enumerate()
    return {each.ident: each.serves for each in threads if each.ident is not None and hasattr(each, "serves")}


def _of(stack: FrameType) -> Wait | None:
    """What a thread waits for in the library; None: it does not, or not without a limit of its own."""
    frame: FrameType | None = stack
    if stack.f_code is Collectives._run_here.__code__:
        return Wait(stack.f_locals["self"].in_flight, -1)
    if stack.f_code is not Request.wait.__code__:
        return None
    for _ in range(_NEAR):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_code is Work._waits.__code__:
            return _of_work(frame.f_locals["self"], frame.f_locals["seconds"])
    return None


def _of_work(work: Work, seconds: float | None) -> Wait | None:
    """A send may be over as soon as the network has taken it, so nobody can tell what it waits for."""
    if not isinstance(work, Message):
        return Wait(work.in_flight, -1) if seconds is None else None
    sends, peer, _ = work.about
    ends = seconds is not None and (seconds != work.limit_s or seconds < _SHORT_S)
    return None if sends or peer < 0 or ends else Wait(work.in_flight, peer)


def _where(frame: FrameType | None) -> str:
    """ "all_reduce (train.py, line 12)": torch's function, and the program's line; "": it is none of the program's."""
    called = ""
    while frame is not None:
        module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        if module.startswith("torch.distributed"):
            called = called if name == "wrapper" else name  # it logs the call
        elif _waits_within(frame):
            called = called or _WITHIN.get(frame.f_code, "a step")
        elif module.partition(".")[0] not in _LIBRARIES:
            return f"{called or 'a wait'} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""
