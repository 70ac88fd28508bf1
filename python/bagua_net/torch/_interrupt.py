# SPDX-License-Identifier: MIT
"""Signals during an operation that runs on the main thread, in the library: Python's handlers run on that thread only.

A waiting operation asks :func:`callback` a few times a second. The call itself lets the pending handlers run; when one
of them raises, as that of Ctrl-C does, the operation ends, and :func:`raised` has the exception.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from .._native import library

_raised: list[BaseException] = []


def _keep(_: Any, error: BaseException, __: Any) -> int:
    _raised.append(error)
    return 1


@functools.cache
def _make() -> Any:
    return library.ffi.callback("int(void)", lambda: 0, error=1, onerror=_keep)


def callback() -> Any:
    """For ``bnet_queue_run``; NULL on every thread but the main one, which runs no handlers."""
    return _make() if threading.current_thread() is threading.main_thread() else library.ffi.NULL


def raised() -> BaseException | None:
    """The exception that has ended the operation, once."""
    return _raised.pop() if _raised else None
