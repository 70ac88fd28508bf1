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

    __slots__ = ("_address", "_quick")

    def __init__(self, pointer: Any) -> None:
        self._quick = library.quick()
        self._address = library.address(pointer)

    def __del__(self) -> None:
        self._quick.bnet_ticket_release(self._address)

    def state(self) -> int:
        """0: in progress, 1: done, -1: failed."""
        return int(self._quick.bnet_ticket_over(self._address))

    def wait(self, deadline: float | None) -> bool:
        """Waits for the end, until a time of time.monotonic(). Without the GIL, but handlers of signals run."""
        if self.state():
            return True
        lib, pointer = library.load(), library.ffi.cast("bnet_ticket_t *", self._address)
        while not self.state():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            lib.bnet_ticket_wait(pointer, _slice(deadline))
        return True

    def result(self) -> Result:
        """Of an operation that is over."""
        out = library.ffi.new("bnet_result_t *")
        self._quick.bnet_ticket_result(self._address, library.address(out))
        return Result(out.rc, out.peer, library.text(out.error))


def _slice(deadline: float | None) -> float:
    return _SLICE_S if deadline is None else max(0.0, min(_SLICE_S, deadline - time.monotonic()))
