# SPDX-License-Identifier: MIT
"""A rank's part in a group, whatever torch takes it for: its collectives and messages, their timeout, their end."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _deadlock as deadlock
from ._callbacks import Callbacks
from ._collectives import Collectives
from ._deadlock import Progress
from ._fingerprints import Fingerprints
from ._in_flight import InFlight
from ._meeting import Meeting
from ._membership import MembershipCheck
from ._messages import Messages
from ._operations import Block, Operations
from ._reasons import Reasons
from ._rendezvous import Rendezvous, failed
from ._reporter import Reporter
from ._work import Context, Turns

_NO_TIME = timedelta(0)

#: Those that were not ended: the library uses their memory, and must not when the interpreter ends.
_open: set[Member] = set()
#: Of groups that have ended while one of their callbacks ran: the interpreter must not end in the middle of it.
_calling_back: set[Callbacks] = set()


class Member(Operations):
    """Collectives run one at a time, in the order of their calls; point-to-point messages run independently. A
    collective that fails (a peer is gone, or nothing moved for the timeout) raises
    ``torch.distributed.DistBackendError`` in its wait, and so does every later one: make a new group. A message may be
    posted long before its peer posts its side. A wait for it that exceeds the group's timeout raises as well, but has
    no other effect. What a signal handler raises during an operation ends the group.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._label = f"group {name}" if name else "group"
        self._timeout_s = timeout.total_seconds()
        rendezvous = Rendezvous(store, rank, size)
        self._meeting = rendezvous.meeting
        self._in_flight = InFlight()
        try:
            self._collectives = Collectives(self._label, rendezvous, rank, size, self._timeout_s, self._in_flight)
        except RuntimeError as error:
            self._meeting.refuse(str(error))
            raise
        try:
            self._messages = Messages(self._label, rendezvous, rank, size, self._timeout_s)
        except BaseException as error:
            self._collectives.close()
            self._meeting.refuse(str(error))
            raise
        try:
            self._meeting.begin()
        except BaseException as error:
            self._collectives.close()
            self._messages.close()
            self._meeting.refuse(str(error))
            raise
        self._callbacks = Callbacks(f"bagua_net {self._label} callbacks")
        self._coalescing = Block()
        self._reasons = Reasons(self._meeting, deadlock.watch.decided)
        self._context = self._shared(self._collectives.reporter, self._collectives)
        self._message_context = self._shared(self._messages.reporter, None)
        self._numbers, self._sequence = itertools.count(1), 0
        self._fingerprints: Fingerprints | None = None
        self._order = threading.RLock()
        self._barriers = 0
        self._ending = threading.RLock()
        self._ended = False
        _open.add(self)
        if size > 1:
            deadlock.watch.add(self)

    def _shared(self, reporter: Reporter, turns: Turns | None) -> Context:
        interrupted = weakref.WeakMethod(self._interrupted)  # a group needs no garbage collector

        def end(error: BaseException) -> None:
            if (method := interrupted()) is not None:
                method(error)

        shared = (self._callbacks, self._in_flight, self._reasons)
        return Context(self._label, self._rank, turns, reporter, *shared, end)

    def compare_calls(self) -> None:
        """From now on all ranks compare each collective before it starts: TORCH_DISTRIBUTED_DEBUG=DETAIL."""
        self._fingerprints = Fingerprints(self._meeting)

    # ---- timeout ----

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = self._collectives.timeout_s = self._messages.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # ---- sequence numbers ----

    def _set_sequence_number_for_group(self) -> None:
        """All ranks count their collectives from 1 without having agreed on it."""

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has started."""
        return self._sequence

    # ---- end ----

    def shutdown(self) -> None:
        """Waits for the collectives and sends in progress, then closes all connections.

        It may wait in vain for other ranks: for collectives up to the group's timeout; sends fail after half a minute
        without progress, and ranks that have not come are waited for until some seconds after the group was made.
        :meth:`abort` from another thread ends the wait. A collective that still waits for the ranks
        to compare their calls fails.
        """
        self._end_comparison()
        with self._ending:
            if not self._ended:
                self._collectives.close()
                self._messages.finish_sends()
                self._meeting.finish()
                self._close()
        self._end_callbacks()  # outside the lock: a callback may itself end the group, or wait for a thread that does

    def abort(self) -> None:
        """Makes all pending operations fail, then closes all connections. From any thread."""
        if self._ended:
            return
        self._fail_pending()
        with self._ending:
            if not self._ended:
                self._close()
        self._end_callbacks()

    def _fail_pending(self) -> None:
        self._collectives.abort()
        self._messages.abort()
        self._meeting.give_up()
        self._end_comparison()

    # ---- for _deadlock.py ----

    @property
    def meeting(self) -> Meeting:
        return self._meeting

    @property
    def in_flight(self) -> InFlight:
        return self._in_flight

    @property
    def label(self) -> str:
        description = str(getattr(self, "group_desc", ""))
        return f"{self._label} ({description})" if description not in ("", "undefined") else self._label

    def progress(self) -> Progress:
        return Progress(*self._collectives.progress(), self._messages.progress())

    def fail(self) -> None:
        """Makes all pending operations fail. From any thread."""
        self._fail_pending()

    def _end_callbacks(self) -> None:
        """A callback may wait for the operation that this call interrupts: that one goes on afterwards."""
        if self._callbacks.close(wait=not self._collectives.interrupted_here):
            _calling_back.discard(self._callbacks)

    def _interrupted(self, error: BaseException) -> None:
        """A signal handler has raised this during an operation, and nobody knows how far this rank has come: the group
        is over. It ends on a thread of its own: the caller may be in a callback, which the end waits for."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = f"it ended when a signal handler raised {what} during one of its operations; make a new group"
        self._collectives.refuse(failed(self._label, text, 0))
        self._messages.refuse(failed(self._label, text, 0))
        try:
            threading.Thread(target=self.abort, name=f"{self._label} end", daemon=True).start()
        except RuntimeError:  # no thread can start
            self.abort()

    def _end_comparison(self) -> None:
        if self._fingerprints is not None:
            self._fingerprints.give_up()

    def _close(self) -> None:
        self._collectives.close()
        self._messages.close()
        self._meeting.close()
        self._in_flight.settle()
        self._ended = True
        _calling_back.difference_update([each for each in list(_calling_back) if each.is_over])
        _calling_back.add(self._callbacks)
        _open.discard(self)
        deadlock.watch.remove(self)

    def leave_to_parent(self) -> None:
        """In a child of fork(): the connections belong to its parent, and it has none of the threads."""
        refusal = RuntimeError(
            f"bagua_net {self._label} belongs to the process that forked this one; make a group here"
        )
        self._collectives.leave_to_parent(refusal)
        self._messages.leave_to_parent(refusal)
        self._callbacks.leave_to_parent()
        self._in_flight.leave_to_parent()
        self._fingerprints = None  # the connection to the store is the parent's as well
        self._order = threading.RLock()
        self._ending = threading.RLock()
        self._ended = True

    # ---- monitored barrier ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the missing ranks. It uses only the store, so it works when the network does not.

        Up to torch 2.13, ``torch.distributed.monitored_barrier`` works only with groups of gloo: call this method, for
        the default group as ``torch.distributed.group.WORLD.monitored_barrier()``.

        Args:
            timeout: how long the others may take; the group's by default.
            wait_all_ranks: name all missing ranks, not only the first.

        Raises:
            DistBackendError: on rank 0, ranks are missing; on the others, rank 0 did not report that all are here.
            DistNetworkError: the store cannot be reached.
        """
        limit = timeout if timeout is not None and timeout > _NO_TIME else timedelta(seconds=self._timeout_s)
        self._barriers += 1
        problem = MembershipCheck(self._meeting, self._barriers).run(limit, wait_all_ranks)
        if problem:
            raise dist.DistBackendError(f"{self._label}: {problem}")


def abort_open() -> None:
    """The interpreter does not wait for daemon threads: none may be in the middle of a message when it exits."""
    members = list(_open)
    for member in members:  # all of them first: a callback of one may wait for an operation of another
        member._fail_pending()
    for member in members:
        member.abort()
    for callbacks in list(_calling_back):
        callbacks.close()


def _leave_to_parent() -> None:
    for member in list(_open):
        member.leave_to_parent()
    _open.clear()
    _calling_back.clear()
    deadlock.watch.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
