# SPDX-License-Identifier: MIT
"""The result of starting an operation: wait for it, query it, or get its future."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.futures import Future, collect_all

from ._callbacks import Callbacks
from ._rendezvous import failed
from ._reporter import Reporter
from ._tickets import Ticket

_NO_TIME = timedelta(0)
#: Every so many operations, so many old ones are looked at: more than were added, so that all that end are forgotten.
_EVERY, _LOOKS = 8, 12


class Flights:
    """A group's operations that nobody has seen end. A caller may drop a work at once: its memory is in use until then.

    Any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}
        self._added = itertools.count(1)

    def began(self, work: Work) -> None:
        self._works[id(work)] = work
        if next(self._added) % _EVERY:
            return
        for old in list(itertools.islice(self._works.values(), _LOOKS)):
            old.is_completed()

    def landed(self, work: Work) -> None:
        self._works.pop(id(work), None)

    def settle(self) -> None:
        """Forgets all that are over."""
        for work in list(self._works.values()):
            work.is_completed()


class Reports(NamedTuple):
    """Who fulfils the futures of a group's operations, and runs their callbacks."""

    reporter: Reporter
    callbacks: Callbacks


class Move(NamedTuple):
    """What a message is about."""

    sends: bool
    rank: int
    peer: int
    tag: int


class Work(dist.Work):  # type: ignore[misc]
    """An operation in progress or finished; any thread may use it.

    It keeps the tensors alive until the operation is over, so that the caller need not. The library ends operations
    without Python: the first thread that looks stores what was received for tensors that are not contiguous.
    """

    #: What a wait happens in, for those who watch it.
    around_wait: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(
        self,
        group: str,
        tickets: Sequence[Ticket],
        result: Any,
        held: Any,
        store: Callable[[], None] | None,
        reports: Reports,
        flights: Flights,
    ) -> None:
        """
        Args:
            group: its name in errors.
            tickets: of its parts, in the order of their ends.
            result: the tensors, a list.
            held: what must live until then.
            store: what remains to be done then; None: nothing.
        """
        super().__init__()
        self._group = group
        self._tickets = tickets
        self._tensors = result
        self._held = held
        self._store = store
        self._reporter, self._callbacks = reports
        self._landed = flights.landed
        self._lock = threading.Lock()
        self._over = False
        self._error: BaseException | None = None
        self._reported = False  # to the future
        self._fulfilled: Any = None  # torch's future of the end
        self._future: Any = None  # and the one of the result
        flights.began(self)

    # ---- the end ----

    def _settle(self) -> None:
        """Once all parts are over."""
        with self._lock:
            if self._over:
                return
            self._error = next((self._error_of(ticket) for ticket in self._tickets if ticket.state() < 0), None)
            if self._error is None and self._store is not None:
                try:
                    self._store()
                except BaseException as refused:  # for example a tensor whose elements share memory
                    self._error = refused
            self._held = self._store = None
            self._over = True
        self._landed(self)

    def _error_of(self, ticket: Ticket) -> BaseException:
        result = ticket.result()
        return failed(self._group, result.reason, result.rc)

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return list(self._tensors)

    # ---- for the caller; torch's names ----

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Returns once the operation has ended. Raises its error, or DistBackendError after ``timeout`` (0: none)."""
        if not self._ends_within(timeout.total_seconds() if timeout > _NO_TIME else None):
            raise dist.DistBackendError(f"the operation is not over after {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def _ends_within(self, seconds: float | None) -> bool:
        """Waits for the end, at most this long; None: without a limit."""
        if self.is_completed():
            return True
        deadline = None if seconds is None else time.monotonic() + seconds
        with self.around_wait():
            ended = all(ticket.wait(deadline) for ticket in self._tickets)
        if ended:
            self._settle()
        return ended

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
        if not self.is_completed():
            try:
                self._reporter.add(self)
                self.report()  # the operation may have ended before the reporter knew of it
                return self._future
            except RuntimeError:  # no thread can start: then the future is late rather than lost
                self._ends_within(None)
        fulfilled.set_result(None)
        return self._future

    def report(self) -> bool:
        """For the reporter. Callbacks of the future run elsewhere: they may wait for the next operation."""
        if not self.is_completed():
            return False
        with self._lock:
            reported, self._reported = self._reported, True
        if not reported:
            self._callbacks.run(lambda: self._fulfilled.set_result(None))
        return True

    def is_completed(self) -> bool:
        if not self._over:
            for ticket in self._tickets:
                if not ticket.state():
                    return False
            self._settle()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        return list(self._tensors)

    def synchronize(self) -> None:
        """Host memory needs nothing after :meth:`wait`."""

    def source_rank(self) -> int:
        return self._tickets[-1].result().peer if self.is_completed() else -1

    _source_rank = source_rank


class Message(Work):
    """A send or a receive. Its timeout starts with the wait: a message may be posted long before its peer's side. It
    may be waited for again after a wait that timed out.
    """

    #: The limit of a wait without a timeout; None: none.
    limit_s: float | None = None
    move: Move

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        if timeout <= _NO_TIME and not self._ends_within(self.limit_s):
            raise dist.DistBackendError(self._late())
        return super().wait(timeout)

    def _late(self) -> str:
        sends, rank, peer, tag = self.move
        whom, who = ("any rank", "any") if peer < 0 else (f"rank {peer}", "it")
        asks = f"does {who} {'receive' if sends else 'send'} with this tag, {tag}?"
        return f"bagua_net, {self._group}: rank {rank} waited {self.limit_s:g} s in vain for {whom}; {asks}"


class Joint(dist.Work):  # type: ignore[misc]
    """Several operations as one: finished when the last of them is."""

    def __init__(self, parts: list[Work]) -> None:
        super().__init__()
        self._parts = parts

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        for part in self._parts:
            part.wait(timeout)
        return True

    def get_future(self) -> Any:
        return collect_all([part.get_future() for part in self._parts]).then(lambda _: self._outcome())

    def _outcome(self) -> list[Any]:
        self.wait()  # raises the error of the first that failed
        return self.result()

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        return next((error for part in self._parts if (error := part.exception()) is not None), None)

    def result(self) -> list[Any]:
        return [tensor for part in self._parts for tensor in part.result()]

    def synchronize(self) -> None:
        """Host memory needs nothing after :meth:`wait`."""
