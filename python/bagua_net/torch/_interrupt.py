# SPDX-License-Identifier: MIT
"""Signals during an operation that runs on the main thread, in the library: Python's handlers run on that thread only.

Where a handler may call a collective itself (:func:`expected`), no operation runs there. Elsewhere an operation asks
:func:`callback` ten times a second while it waits, and once while it moves. The call itself lets the pending handlers
run; when one of them raises, as that of Ctrl-C does, the operation ends, and :func:`raised` has the exception.
"""

from __future__ import annotations

import functools
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal has one that is 20 times as slow
from typing import Any

from .._native import library

#: What schedulers and launchers announce an end with; jobs save a checkpoint then, which takes collectives.
_ANNOUNCED = tuple(
    map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT))
)
_DEFAULTS = (None, int(signal.SIG_DFL), int(signal.SIG_IGN), signal.default_int_handler)

_raised: list[BaseException] = []


def _keep(_: Any, error: BaseException, __: Any) -> int:
    _raised.append(error)
    return 1


@functools.cache
def _make() -> Any:
    return library.ffi.callback("int(*)(void)", lambda: 0, error=1, onerror=_keep)


def runs_handlers() -> bool:
    """Does the calling thread run signal handlers? Only the main one does."""
    return threading.get_ident() == threading.main_thread().ident


def expected() -> bool:
    """Has the program a handler for a signal that announces an end?"""
    return any(getsignal(each) not in _DEFAULTS for each in _ANNOUNCED)


def callback() -> Any:
    """For ``bnet_queue_run``; NULL on a thread that runs no handlers."""
    return _make() if runs_handlers() else library.ffi.NULL


def raised() -> BaseException | None:
    """The exception that has ended this thread's operation, once."""
    return _raised.pop() if _raised and runs_handlers() else None
