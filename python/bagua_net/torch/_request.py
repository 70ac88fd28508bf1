# SPDX-License-Identifier: MIT
"""The library's requests: one for each operation that it carries out (its ``bnet_ticket_t``)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .._native import library

#: Seconds between two looks for signals while a thread waits in the library.
_SLICE_S = 0.2


class Result(NamedTuple):
    """``rc``: 0 or -errno. ``peer``: of a message; -1: none. ``reason``: None on success."""

    rc: int
    peer: int
    reason: str | None


class Request(ctypes.c_void_p):
    """An operation in progress or over. Any thread.

    It is the pointer that the library fills in when it accepts the operation, and false until then.
    """

    __slots__ = ()

    # When the interpreter ends, the default value outlives this module's names.
    def __del__(self, quick: Callable[[], Any] = library.quick) -> None:
        if self:
            quick().bnet_ticket_release(self)

    def state(self) -> int:
        """0: in progress, or not posted; 1: done, -1: failed."""
        return library.quick().bnet_ticket_over(self) if self else 0

    def wait(self, deadline: float | None) -> bool:
        """Waits for the end, until a time of time.monotonic(). Without the GIL, but handlers of signals run."""
        wait = library.patient().bnet_ticket_wait
        while not self.state():
            if deadline is None:
                left = _SLICE_S
            elif (left := deadline - time.monotonic()) <= 0:
                return False
            wait(self, min(left, _SLICE_S))
        return True

    def result(self) -> Result:
        """Of an operation that is over."""
        out = library.ffi.new("bnet_result_t *")
        library.quick().bnet_ticket_result(self, library.address(out))
        return Result(out.rc, out.peer, library.text(out.error))
