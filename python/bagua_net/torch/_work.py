# SPDX-License-Identifier: MIT
"""The result of starting an operation: wait for it, query it, or get its future."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future, collect_all

from ._callbacks import Callbacks

_NO_TIME = timedelta(0)


class Work(dist.Work):  # type: ignore[misc]
    """An operation in progress or finished. One thread makes it, one finishes it, any may query it.

    It keeps the tensors alive until it is finished, so that the caller need not.
    """

    def __init__(self, tensors: list[Any], callbacks: Callbacks) -> None:
        super().__init__()
        self._tensors = tensors
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._over = False
        self._gate = threading.Lock()  # held until it has finished: an Event costs three times as much
        self._gate.acquire()
        self._error: BaseException | None = None
        self._fulfilled: Any = None  # torch's future of the end
        self._future: Any = None  # and the one of the result
        self._source = -1

    # ---- for the thread that runs it ----

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        """Ends the operation. ``source``: the sender of a message received from any rank."""
        self._source = source
        with self._lock:
            self._error = error
            self._over = True
            fulfilled = self._fulfilled
        self._gate.release()
        if fulfilled is not None:
            self._callbacks.run(lambda: fulfilled.set_result(None))

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._tensors

    # ---- for the caller; torch's names ----

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Returns once the operation has ended. Raises its error, or DistBackendError after ``timeout`` (0: none)."""
        if not self._ends_within(timeout.total_seconds() if timeout > _NO_TIME else -1):
            raise dist.DistBackendError(f"the operation is not over after {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def _ends_within(self, seconds: float) -> bool:
        """Waits for the end, at most this long; -1: without a limit."""
        if not self._over:
            if not self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                return False
            self._gate.release()
        return True

    def get_future(self) -> Any:
        """The future of the tensors. An error is raised as RuntimeError with the same text, in C++ as well.

        Only Python sees torch's Future.set_exception: C++, such as DDP's reducer, would take the exception for the
        result. Both see an exception that a callback raises.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            fulfilled = self._fulfilled = Future()
            self._future = fulfilled.then(lambda _: self._outcome())
            over = self._over
        if over:
            fulfilled.set_result(None)
        return self._future

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Any]:
        return self._tensors

    def synchronize(self) -> None:
        """Host memory needs nothing after :meth:`wait`."""

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class Message(Work):
    """A send or a receive. Its timeout starts with the wait: a message may be posted long before its peer's side. It
    may be waited for again after a wait that timed out.
    """

    def __init__(self, tensors: list[Any], callbacks: Callbacks, limit_s: float, late: str) -> None:
        """``limit_s``: the limit of a wait without a timeout (0: none). ``late``: the text of the error then."""
        super().__init__(tensors, callbacks)
        self._limit_s = limit_s if limit_s > 0 else -1
        self._late = late

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        if timeout <= _NO_TIME and not self._ends_within(self._limit_s):
            raise dist.DistBackendError(self._late)
        return super().wait(timeout)


class Joint(Work):
    """Several operations as one: finished when the last of them is."""

    def __init__(self, parts: list[Work], callbacks: Callbacks) -> None:
        super().__init__([tensor for part in parts for tensor in part.result()], callbacks)
        self._parts = parts

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        for part in self._parts:
            part.wait(timeout)
        return True

    def get_future(self) -> Any:
        return collect_all([part.get_future() for part in self._parts]).then(lambda _: self._whole())

    def _whole(self) -> list[Any]:
        for part in self._parts:
            part.wait()  # raises the error of the first that failed
        return self._tensors

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        return next((error for part in self._parts if (error := part.exception()) is not None), None)
