# SPDX-License-Identifier: MIT
"""The library's tickets: one for each operation that another thread carries out."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from .._native import library

#: Seconds between two looks for signals while a thread waits in the library.
_SLICE_S = 0.1


class Result(NamedTuple):
    """``rc``: 0 or -errno. ``peer``: of a message; -1: none. ``reason``: None on success."""

    rc: int
    peer: int
    reason: str | None


class Ticket:
    """An operation in progress or over. Any thread."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: Any) -> None:
        self._pointer = library.ffi.gc(pointer, library.load().bnet_ticket_release)

    def over(self) -> bool:
        return bool(library.load().bnet_ticket_wait(self._pointer, 0) == 0)

    def wait(self, deadline: float | None) -> bool:
        """Waits for the end, until a time of time.monotonic(). Without the GIL, but handlers of signals run."""
        lib = library.load()
        while lib.bnet_ticket_wait(self._pointer, _slice(deadline)) != 0:
            if deadline is not None and time.monotonic() >= deadline:
                return self.over()
        return True

    def result(self) -> Result:
        """Of an operation that is over."""
        out = library.ffi.new("bnet_result_t *")
        library.load().bnet_ticket_result(self._pointer, out)
        return Result(out.rc, out.peer, library.text(out.error))


def _slice(deadline: float | None) -> float:
    return _SLICE_S if deadline is None else max(0.0, min(_SLICE_S, deadline - time.monotonic()))
