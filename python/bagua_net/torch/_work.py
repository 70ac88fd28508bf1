# SPDX-License-Identifier: MIT
"""The result of starting an operation: wait for it, query it, or get its future."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist
from torch.futures import Future, collect_all

from .._native import library
from ._callbacks import Callbacks
from ._rendezvous import failed
from ._reporter import Reporter
from ._tickets import Ticket

_NO_TIME = timedelta(0)
#: Every so many operations, so many old ones are looked at: more than were added, so that all that end are forgotten.
_EVERY, _LOOKS = 8, 12
#: The same after a look that has found none that is over: thousands of receives may be posted before the first send.
_SELDOM = 16
#: Seconds between two looks whether another thread has stored what was received.
_PAUSE_S = 0.001

_NONE: list[Any] = []
_NOBODY: dict[Any, None] = {}

_init = dist.Work.__init__
#: For the step that makes a future known.
_step = threading.RLock()


class Flights:
    """A group's operations that nobody has seen end. A caller may drop a work at once: its memory is in use until then.

    Any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self._works: OrderedDict[int, Work] = OrderedDict()
        self._added = itertools.count(1)
        self._due = _EVERY

    def began(self, work: Work) -> None:
        """Before the library knows of it."""
        self._works[id(work)] = work
        added = next(self._added)
        if added >= self._due:
            self._due = added + (_EVERY if self._look() else _SELDOM)

    def _look(self) -> bool:
        """At the oldest; those in progress move to the end, so that the others have their turn. Was any over?"""
        found = False
        # chain() makes the dict's iterator within list(): between two calls, another thread might change the dict.
        for old in list(itertools.islice(itertools.chain(self._works.values()), _LOOKS)):
            if old.look():
                found = True
                continue
            try:
                self._works.move_to_end(id(old))
            except KeyError:  # another thread has seen its end just now
                found = True
        return found

    def landed(self, work: Work) -> None:
        self._works.pop(id(work), None)

    def settle(self) -> None:
        """Forgets all that are over."""
        for work in list(self._works.values()):
            work.is_completed()

    def leave_to_parent(self) -> None:
        """In a child of fork(): no memory is in use."""
        works, self._works = self._works, OrderedDict()
        for work in works.values():
            work.leave_to_parent()


class Turns(Protocol):
    """See ``Collectives``."""

    def hold(self, ticket: Ticket) -> bool: ...

    def enter(self, ticket: Ticket) -> None: ...

    def leave(self, ticket: Ticket) -> None: ...


class Context(NamedTuple):
    """What the works of a group share. Its collectives have one, and its messages."""

    label: str  # the group in errors
    rank: int
    turns: Turns | None  # keep the order of what callbacks post; None: messages have none
    reporter: Reporter  # fulfils futures, …
    callbacks: Callbacks  # whose callbacks run here
    flights: Flights


class Work(dist.Work):  # type: ignore[misc]
    """An operation in progress or finished; any thread may use it.

    It exists before the operation is posted, and keeps the tensors alive until that is over, whatever happens to the
    caller meanwhile. The library ends operations without Python: the first thread that looks stores what was received
    for tensors that are not contiguous.
    """

    __slots__ = (
        "_context",
        "_error",
        "_future",
        "_held",
        "_over",
        "_queued",
        "_store",
        "_storing",
        "_tensors",
        "_tickets",
        "_turn",
        "_unfulfilled",
        "around_wait",
    )

    _context: Context
    _tickets: Sequence[Ticket]
    _error: Exception | None
    #: What a wait happens in, for those who watch it.
    around_wait: Callable[[], contextlib.AbstractContextManager[Any]] | None

    def __init__(
        self,
        context: Context,
        tickets: Sequence[Ticket],
        result: Any,
        held: Any,
        store: Callable[[], None] | None,
    ) -> None:
        """
        Args:
            tickets: of its parts, in the order of their ends; they may not have been posted yet.
            result: the tensors, a list.
            held: what must live until then.
            store: what remains to be done then; None: nothing. May run more than once.
        """
        _init(self)
        self._context = context
        self._tickets = tickets
        self._tensors = result
        self._held = held
        self._store = store
        self._storing: dict[tuple[int, object], None] = {} if store is not None else _NOBODY
        self._over = False
        self._error = None
        self._future: Any = None  # torch's future of the result
        self._unfulfilled: list[Any] = _NONE  # and the one of the end: who takes it fulfils it
        self._queued = False  # its callbacks run, or will
        self._turn = False  # they have one
        self.around_wait = None

    def abandon(self) -> None:
        """Not all parts were posted: what was keeps its memory until it is over, and nothing is stored."""
        self._store = None
        self._tickets = [ticket for ticket in self._tickets if ticket]
        self.look()

    # ---- the end ----

    def look(self) -> bool:
        """Ends it where its parts are over, unless another thread is doing so. False: it is in progress.

        For who must not wait for another thread: that one may have been interrupted by a handler that waits for this.
        """
        if not self._over:
            state = self._state()
            if not state:
                return False
            self._settle(state)
        return True

    def is_completed(self) -> bool:
        if not self._over:
            state = self._state()
            if not state:
                return False
            self._settle(state)
            while not self._over:
                time.sleep(_PAUSE_S)
                self._settle(state)
        return True

    def _state(self) -> int:
        """0: not all parts are over; 1: they are, -1: and one has failed."""
        over, result = library.quick().bnet_ticket_over, 1
        for ticket in self._tickets:
            state = over(ticket) if ticket else 0
            if not state:
                return 0
            if state < 0:
                result = -1
        return result

    def _settle(self, state: int) -> None:
        """Once all parts are over: ends it, unless another thread is storing what was received."""
        try:
            self._try_to_settle(state)
        except BaseException:  # of a signal handler: the reporter may have left the future to this thread
            self._try_to_settle(state)
            raise

    def _try_to_settle(self, state: int) -> None:
        if not self._over:
            if state < 0:
                self._ended(next(self._error_of(ticket) for ticket in self._tickets if ticket.state() < 0))
            elif (store := self._store) is None:
                self._ended(None)
            else:
                self._store_alone(store)
        if self._over:
            self._context.flights.landed(self)
            if self._future is not None:
                self._fulfil()

    def _store_alone(self, store: Callable[[], None]) -> None:
        """Unless another thread does; this thread may, in a handler that has interrupted it there.

        This is not a lock: a signal handler that raises could leave a lock taken. Each thread enters a claim before it
        stores, the first claim wins, and each thread removes its own.
        """
        storing, me = self._storing, (threading.get_ident(), object())
        try:
            storing[me] = None
            (first, _), *_ = list(storing)  # in one step: the dict may change
            if first == me[0] and not self._over:
                self._ended(_refused(store))
        finally:
            storing.pop(me, None)

    def _ended(self, error: Exception | None) -> None:
        if not self._over:  # a handler was faster
            self._error = error
            self._over = True
            self._held = self._store = None

    def _error_of(self, ticket: Ticket) -> Exception:
        result = ticket.result()
        return failed(self._context.label, result.reason, result.rc)

    def leave_to_parent(self) -> None:
        """In a child of fork(), which lacks the thread that may have been storing."""
        self._storing = {}

    # ---- for the caller; torch's names ----

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Returns once the operation has ended. Raises its error, or DistBackendError after ``timeout`` (0: none)."""
        if not self._over and not self.is_completed():
            self._await(timeout)
        if self._error is not None:
            raise self._error
        return True

    def _await(self, timeout: timedelta) -> None:
        if not self._ends_within(timeout.total_seconds() if timeout > _NO_TIME else None):
            raise dist.DistBackendError(f"the operation is not over after {timeout.total_seconds():g} s")

    def _ends_within(self, seconds: float | None) -> bool:
        """Waits for the end, at most this long; None: without a limit."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if self.around_wait is None:
            ended = all(ticket.wait(deadline) for ticket in self._tickets)
        else:
            with self.around_wait():
                ended = all(ticket.wait(deadline) for ticket in self._tickets)
        return ended and self.is_completed()

    def get_future(self) -> Any:
        """The future of the tensors. An error is raised as RuntimeError with the same text, in C++ as well.

        Only Python sees torch's Future.set_exception: C++, such as DDP's reducer, would take the exception for the
        result. Both see an exception that a callback raises.
        """
        if self._future is None:
            try:
                self._begin_future()
            except BaseException:  # of a signal handler: what waits for the callbacks, as a turn does, must not wait
                self._begin_future()  # for a future that nobody has
                raise
        return self._future

    def _begin_future(self) -> None:
        """May run again after any of its steps."""
        over = (not self._turn and self.is_completed()) or (not self._gets_turn() and self.is_completed())
        if over:
            self._publish(self._fulfilled(), _NONE)
        else:
            fulfilled = Future()
            self._publish(fulfilled.then(lambda _: self._outcome()), [fulfilled])
        if self._unfulfilled and not self._report_later():
            self._tell()

    def _gets_turn(self) -> bool:
        """Before there is a future. Where the operation is over already, callbacks run on the thread that adds them, in
        the order of its calls."""
        turns = self._context.turns
        # Between the look at _turn and the mark nothing is called: one thread takes the turn, and no other loses it.
        if turns is not None and not _asked_by_the_reducer() and not self._turn:
            self._turn = True  # to leave a turn that it does not have does no harm, and a handler may raise meanwhile
            self._turn = turns.hold(self._tickets[-1])
        return self._turn

    def _publish(self, future: Any, unfulfilled: list[Any]) -> None:
        """Unless another thread, or a signal handler, has done so meanwhile."""
        with _step:
            if self._future is None:
                self._unfulfilled = unfulfilled
                self._future = future

    def _fulfilled(self) -> Any:
        """The future of an operation that is over. No Python runs in it where that has succeeded: torch would take what
        a signal handler raises there for the operation's error."""
        future = Future()
        if self._error is None:
            future.set_result(list(self._tensors))
            return future
        future.set_result(None)
        return future.then(lambda _: self._outcome())

    def _report_later(self) -> bool:
        """False: no thread can start; then the future is late rather than lost, and the operation is over."""
        try:
            self._context.reporter.add(self)
        except RuntimeError:
            self._ends_within(None)
            return False
        self.report()
        return True

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return list(self._tensors)

    def report(self) -> bool:
        """For the reporter. Where another thread ends the operation just now, that one fulfils the future."""
        if not self.look():
            return False
        if self._over:
            self._fulfil()
        return True

    def _fulfil(self) -> None:
        """Callbacks of the future run elsewhere: they may wait for the next operation."""
        if self._unfulfilled and not self._queued:
            self._queued = True
            try:
                self._context.callbacks.run(self._tell)
            except BaseException:  # of a signal handler
                self._queued = False
                raise

    def _tell(self) -> None:
        """Runs the callbacks, once. On all ranks, operations that callbacks post come before those that other threads
        have posted meanwhile."""
        try:
            fulfilled = self._unfulfilled.pop()
        except IndexError:
            return
        turns = self._context.turns
        if not self._turn or turns is None:
            fulfilled.set_result(None)
            return
        ticket = self._tickets[-1]
        turns.enter(ticket)
        try:
            fulfilled.set_result(None)
        finally:
            turns.leave(ticket)

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


def _refused(store: Callable[[], None]) -> Exception | None:
    try:
        store()
    except Exception as refused:  # for example a tensor whose elements share memory
        return refused
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


def _leave_to_parent() -> None:
    """In a child of fork(), which lacks the thread that may have been in the step."""
    global _step
    _step = threading.RLock()


os.register_at_fork(after_in_child=_leave_to_parent)


def _asked_by_the_reducer() -> bool:
    """C++ asks for the future of a bucket, which has no callbacks: a turn would only make the next bucket wait for a
    thread of Python."""
    asking = sys._getframe(3)  # get_future
    frame = asking.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
