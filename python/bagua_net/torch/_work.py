# SPDX-License-Identifier: MIT
"""The result of starting an operation: wait for it, query it, or get its future."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch.autograd.graph
import torch.distributed as dist
from torch.futures import Future, collect_all

from .._native import library
from .._torch_internals import named
from . import _interrupt
from ._callbacks import Callbacks
from ._in_flight import InFlight
from ._reasons import Reasons
from ._rendezvous import failed
from ._reporter import Reporter
from ._request import Request

_NO_TIME = timedelta(0)
#: What runs a backward pass, and with it DDP's reducer.
BACKWARD = named(torch.autograd.graph, "_engine_run_backward").__code__

_init = dist.Work.__init__


class Turns(Protocol):
    """See ``Collectives``."""

    def hold(self, request: Request) -> bool: ...

    def enter(self, request: Request) -> None: ...

    def leave(self, request: Request) -> None: ...


class Context(NamedTuple):
    """What the works of a group share. Its collectives have one, and its messages."""

    label: str  # the group in errors
    rank: int
    turns: Turns | None  # keep the order of what callbacks post; None: messages have none
    reporter: Reporter  # fulfils futures, …
    callbacks: Callbacks  # whose callbacks run here
    in_flight: InFlight
    reasons: Reasons  # of other ranks' failures
    #: Ends the group: a signal handler has raised this during an operation.
    interrupted: Callable[[BaseException], None]


class Work(dist.Work):  # type: ignore[misc]
    """An operation in progress or finished; any thread may use it.

    It exists before the operation is posted, and keeps the tensors alive until that is over, whatever happens to the
    caller meanwhile. The library ends operations without Python: the first thread that looks stores what was received
    for tensors that are not contiguous.

    A signal handler may interrupt the main thread where it has the lock. Threads that such a handler may wait for only
    try to take it: the reporter's, and those that begin another operation, unless that is on memory which an earlier
    one has yet to write.
    """

    __slots__ = (
        "_context",
        "_error",
        "_future",
        "_held",
        "_holds_turn",
        "_lock",
        "_over",
        "_requests",
        "_store",
        "_tensors",
        "_unfulfilled",
        "around_wait",
    )

    _context: Context
    _requests: Sequence[Request]
    _error: Exception | None
    #: What a wait happens in, for those who watch it.
    around_wait: Callable[[], contextlib.AbstractContextManager[Any]] | None

    def __init__(
        self,
        context: Context,
        requests: Sequence[Request],
        result: Any,
        held: Any,
        store: Callable[[], None] | None,
    ) -> None:
        """
        Args:
            requests: of its parts, in the order of their ends; they may not have been posted yet.
            result: the tensors, a list.
            held: what must live until then.
            store: what remains to be done then; None: nothing. May run more than once.
        """
        _init(self)
        self._context = context
        self._requests = requests
        self._tensors = result
        self._held = held
        self._store = store
        self._lock = threading.RLock()
        self._over = False
        self._error = None
        self._future: Any = None  # torch's future of the result
        self._unfulfilled: Any = None  # and the one of the end: who takes it fulfils it
        self._holds_turn = False  # for its callbacks
        self.around_wait = None

    def abandon(self) -> None:
        """Not all parts were posted: what was keeps its memory until it is over, and nothing is stored."""
        self._store = None
        self._requests = [request for request in self._requests if request]
        self.look()

    # ---- the end ----

    def leave_to_parent(self) -> None:
        self._lock = threading.RLock()

    @property
    def is_posted(self) -> bool:
        return all(self._requests)

    def look(self) -> bool:
        """Ends it where its parts are over, unless another thread is doing so. False: it is in progress."""
        return self._over or self._settles(may_wait=_interrupt.runs_handlers())

    def finish(self) -> bool:
        return self._over or self._settles()

    def is_completed(self) -> bool:
        if not (self._over or self._guarded(self._settles)):
            return False
        return not self._context.in_flight.stores or self._guarded(self._context.in_flight.store)

    def _guarded(self, step: Callable[[], bool]) -> bool:
        """Nothing in it raises but signal handlers."""
        try:
            return step()
        except BaseException as error:
            self._context.interrupted(error)
            raise

    def _settles(self, *, may_wait: bool = True) -> bool:
        """Once all parts are over: ends it. False: they are not, or another thread is doing so and this may not wait.

        A handler that raises between acquire() and the block would leave the lock taken: it runs on the main thread,
        which may wait.
        """
        state = self._state()
        if not state:
            return False
        if may_wait:
            with self._lock:
                self._end(state)
        elif self._lock.acquire(blocking=False):
            try:
                self._end(state)
            finally:
                self._lock.release()
        else:
            return False
        self._context.in_flight.remove(self)
        if self._unfulfilled is not None and self._context.reporter.closing:
            self._tell()
        return True

    def _state(self) -> int:
        """0: not all parts are over; 1: they are, -1: and one has failed."""
        over, result = library.quick().bnet_ticket_over, 1
        for request in self._requests:
            state = over(request) if request else 0
            if not state:
                return 0
            if state < 0:
                result = -1
        return result

    def _end(self, state: int) -> None:
        """Under the lock. A handler of this thread may come in between, and do the same."""
        if self._over:
            return
        error = None
        if state < 0:
            error = next(self._error_of(request) for request in self._requests if request.state() < 0)
        elif (store := self._store) is not None:
            error = _refused(store)
        if not self._over:
            self._error = error
            self._over = True
            self._held = self._store = None

    def _error_of(self, request: Request) -> Exception:
        result = request.result()
        reason = result.reason or None
        if reason and result.rc != -errno.ECHILD:  # the parent's group is well
            reason = self._context.reasons.explain(reason, ends_group=self._context.turns is not None)
        return failed(self._context.label, reason, result.rc)

    @property
    def has_future(self) -> bool:
        return self._future is not None and not self._over

    @property
    def in_flight(self) -> InFlight:
        """The operations of its group."""
        return self._context.in_flight

    # ---- for the caller; torch's names ----

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Returns once the operation has ended. Raises its error, or DistBackendError after ``timeout`` (0: none)."""
        if not self._over:
            self._await(timeout)
        if self._context.in_flight.stores:
            self._guarded(self._context.in_flight.store)
        if self._error is not None:
            raise self._error
        return True

    def _await(self, timeout: timedelta) -> None:
        if not self._ends_within(timeout.total_seconds() if timeout > _NO_TIME else None):
            raise dist.DistBackendError(f"the operation is not over after {timeout.total_seconds():g} s")

    def end(self) -> None:
        """Returns once it is over, however it has ended."""
        self._ends_within(None)

    def _ends_within(self, seconds: float | None) -> bool:
        """Waits for the end, at most this long; None: without a limit."""
        return self._guarded(lambda: self._settles() or (self._waits(seconds) and self._settles()))

    def _waits(self, seconds: float | None) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        if self.around_wait is None:
            return all(request.wait(deadline) for request in self._requests)
        with self.around_wait():
            return all(request.wait(deadline) for request in self._requests)

    def get_future(self) -> Any:
        """The future of the tensors. An error is raised as RuntimeError with the same text, in C++ as well.

        Only Python sees torch's Future.set_exception: C++, such as DDP's reducer, would take the exception for the
        result. Both see an exception that a callback raises.
        """
        if self._future is None:
            for_reducer = _is_backward(sys._getframe().f_back)
            try:
                with self._lock:
                    if self._future is None:
                        self._make_future(wants_turn=self._context.turns is not None and not for_reducer)
            except BaseException as error:
                self._context.interrupted(error)
                raise
        if self._over and self._context.in_flight.stores:
            self._guarded(self._context.in_flight.store)
        return self._future

    def _make_future(self, *, wants_turn: bool) -> None:
        turns = self._context.turns
        if not self._settles():
            self._holds_turn = wants_turn and turns is not None and turns.hold(self._requests[-1])
        if not self._holds_turn and self._settles():
            self._future = self._fulfilled()
            return
        unfulfilled = Future()
        future = unfulfilled.then(lambda _: self._outcome())
        if self._future is None:  # a signal handler on this thread may have asked for it meanwhile
            self._future, self._unfulfilled = future, unfulfilled
        try:
            self._context.reporter.add(self)
        except RuntimeError:  # no thread can start: the future is late rather than lost
            self._waits(None)
        if self._settles():  # the reporter may not have known of it
            self._context.reporter.remove(self)
            self._tell()

    def _fulfilled(self) -> Any:
        """The future of an operation that is over: callbacks run on the thread that adds them, in the order of its
        calls. No Python runs in it where that has succeeded: torch would take what a handler raises there for its
        error.
        """
        future = Future()
        if self._error is None:
            future.set_result(list(self._tensors))
            return future
        future.set_result(None)
        return future.then(lambda _: self._outcome())

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return list(self._tensors)

    def report(self) -> bool | None:
        """For the reporter. Callbacks of the future run elsewhere: they may wait for the next operation."""
        state = self._state()
        if not state:
            return False
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._end(state)
            unfulfilled, self._unfulfilled = self._unfulfilled, None
        finally:
            self._lock.release()
        self._context.in_flight.remove(self)
        self._context.in_flight.store(may_wait=False)
        if unfulfilled is not None:
            self._context.callbacks.run(partial(self._run_callbacks, unfulfilled))
        return True

    def _tell(self) -> None:
        """Fulfils the future on this thread, unless another one does."""
        with self._lock:
            unfulfilled, self._unfulfilled = self._unfulfilled, None
        if unfulfilled is not None:
            self._run_callbacks(unfulfilled)

    def _run_callbacks(self, unfulfilled: Any) -> None:
        """On all ranks, operations that callbacks post come before those that other threads have posted meanwhile."""
        turns = self._context.turns
        with self._context.in_flight.calling_back():
            if not self._holds_turn or turns is None:
                unfulfilled.set_result(None)
                return
            request = self._requests[-1]
            turns.enter(request)
            try:
                unfulfilled.set_result(None)
            finally:
                turns.leave(request)

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        return list(self._tensors)

    def synchronize(self) -> None:
        """Host memory needs nothing after :meth:`wait`."""

    def source_rank(self) -> int:
        return self._requests[-1].result().peer if self.is_completed() else -1

    _source_rank = source_rank


def _refused(store: Callable[[], None]) -> Exception | None:
    """Where torch refuses to write, for example to a tensor whose elements share memory: why."""
    try:
        store()
    except Exception as refused:
        if isinstance(refused, (RuntimeError, MemoryError)) or not _interrupt.runs_handlers():
            return refused
        raise  # it is a signal handler's
    return None


class Message(Work):
    """A send or a receive. Its timeout starts with the wait: a message may be posted long before its peer's side. It
    may be waited for again after a wait that timed out.
    """

    __slots__ = ("about", "limit_s")

    #: Whether it sends, the peer (-1: any), the tag.
    about: tuple[bool, int, int]
    #: The limit of a wait without a timeout; None: none.
    limit_s: float | None

    @property
    def has_future(self) -> bool:
        """What its future waits for, its peer alone could tell."""
        return False

    def _await(self, timeout: timedelta) -> None:
        if timeout > _NO_TIME:
            super()._await(timeout)
        elif not self._ends_within(self.limit_s):
            raise dist.DistBackendError(self._late())

    def _late(self) -> str:
        (sends, peer, tag), (label, rank) = self.about, self._context[:2]
        whom, who = ("any rank", "any") if peer < 0 else (f"rank {peer}", "it")
        asks = f"does {who} {'receive' if sends else 'send'} with this tag, {tag}?"
        return f"bagua_net, {label}: rank {rank} waited {self.limit_s:g} s in vain for {whom}; {asks}"


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


def _is_backward(frame: FrameType | None) -> bool:
    """Does C++ ask for the future, DDP's reducer for that of a bucket? It adds no callbacks, and a turn would only make
    the next bucket wait for a thread of Python."""
    return frame is not None and frame.f_code is BACKWARD
