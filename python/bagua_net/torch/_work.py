# SPDX-License-Identifier: MIT
"""What an operation returns: wait for it, ask for it, or chain a future to it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future, collect_all

from ._callbacks import Callbacks

_NO_TIME = timedelta(0)


class Work(dist.Work):  # type: ignore[misc]
    """An operation that is under way or over. Made by one thread, finished by one, asked by any.

    It holds the tensors until it is finished, so that the caller may forget them.
    """

    def __init__(self, tensors: list[Any], callbacks: Callbacks) -> None:
        super().__init__()
        self._tensors = tensors
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._over = False
        self._gate = threading.Lock()  # taken until it is over: an Event is three times as dear
        self._gate.acquire()
        self._error: BaseException | None = None
        self._fulfilled: Any = None  # torch's future of "it is over"
        self._future: Any = None  # and the one of what came of it
        self._source = -1

    # ---- for the one who does it ----

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        """The operation is over. ``source``: whom a receive from any rank got its message from."""
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

    # ---- for the one who asked for it; torch's names ----

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Returns once the operation is over. Raises what went wrong; DistBackendError after ``timeout`` (0: none)."""
        if not self._ends_within(timeout.total_seconds() if timeout > _NO_TIME else -1):
            raise dist.DistBackendError(f"the operation is not over after {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def _ends_within(self, seconds: float) -> bool:
        """Waits for it, but no longer than that; -1: as long as it takes."""
        if not self._over:
            if not self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                return False
            self._gate.release()
        return True

    def get_future(self) -> Any:
        """Of the tensors. What went wrong is raised as RuntimeError, with the same words, by C++ as well.

        torch's Future.set_exception tells Python alone: to C++, such as DDP's reducer, the exception were the result.
        What a callback raises tells both.
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
    """A send or a receive. Its time begins when it is waited for: a peer may come as late as it likes to what was asked
    for early. A wait that was in vain leaves it as it is, and it may be waited for again.
    """

    def __init__(self, tensors: list[Any], callbacks: Callbacks, limit_s: float, late: str) -> None:
        """``limit_s``: how long it is waited for where nobody says, 0: for good; and ``late``: what is raised then."""
        super().__init__(tensors, callbacks)
        self._limit_s = limit_s if limit_s > 0 else -1
        self._late = late

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        if timeout <= _NO_TIME and not self._ends_within(self._limit_s):
            raise dist.DistBackendError(self._late)
        return super().wait(timeout)


class Joint(Work):
    """Several operations as one: over when the last of them is."""

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
            part.wait()  # raises what one of them did
        return self._tensors

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        return next((error for part in self._parts if (error := part.exception()) is not None), None)
