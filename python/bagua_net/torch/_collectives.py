# SPDX-License-Identifier: MIT
"""A group's collectives: the library's queue runs them one at a time, in the order of the calls."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from typing import Any

from .._native import library
from . import _interrupt
from ._handle import Handle
from ._in_flight import InFlight
from ._rendezvous import Endpoint, RankMissing, Rendezvous, failed
from ._reporter import Reporter
from ._request import Request

#: Seconds between two looks for signals while a thread waits in the library.
_SLICE_S = 0.1


class Collectives:
    """All methods may be called from any thread."""

    def __init__(
        self, label: str, rendezvous: Rendezvous, rank: int, nranks: int, timeout_s: float, in_flight: InFlight
    ) -> None:
        self.in_flight = in_flight  # of the group
        self._lib, self._quick = library.load_host(), library.quick()
        self._label = label
        self._endpoint = Endpoint("collectives", label, rendezvous, rank, nranks, collective=True)
        self._coll = self._endpoint.coll
        out = library.ffi.new("bnet_queue_t **")
        rc = self._lib.bnet_queue_create(out, self._coll)
        if rc != 0:
            self._lib.bnet_coll_destroy(self._coll)
            raise MemoryError(f"bagua_net, {label}: out of memory")
        self._handle = Handle(out[0], self._lib.bnet_queue_destroy)
        self.reporter = Reporter(f"{label} futures", self._wait_for_ends)
        self._joining = threading.RLock()  # a signal handler may join as well
        self._joined = False
        self._missing = ""  # why the other ranks were not found
        self._inline = False  # the thread that runs signal handlers is in an operation of its own
        self.timeout_s = timeout_s

    # ---- operations ----

    def run(self, operation: Any, request: Request, limit_s: float | None, *, now: bool) -> None:
        """Posts an operation (``bnet_op_t *``), which with its arrays must live until the request is over.

        Args:
            request: an empty one, filled in by the post: an exception that follows cannot lose it.
            limit_s: seconds without any progress after which it fails; None: the group's.
            now: the caller waits for it: it may run on the caller's thread, and be over on return. It does not where a
                signal handler may call a collective, for which this operation then would have to wait.

        Raises:
            DistBackendError: the group has ended.
            RuntimeError: it belongs to the parent process, or no thread can start; or the caller is a signal handler
                that has interrupted an operation in the library, which waits for it.
            BaseException: what a signal handler has raised.
        """
        self._handle.check()
        if self.interrupted_here:
            raise RuntimeError(
                f"bagua_net, {self._label}: the handler of this signal cannot start a collective of this group while "
                "it interrupts a synchronous one, which waits for it; call that one with async_op=True, and wait()"
            )
        limit = self.timeout_s if limit_s is None else limit_s
        if not self._joined:
            self._join(limit, now=now)
        now = now and not (_interrupt.runs_handlers() and _interrupt.expected())
        if now:
            _interrupt.raised()  # one that another exception has replaced
            rc = self._handle.use(self._run_here, operation, limit, request)
        else:
            at = library.address(operation)
            rc = self._handle.call(self._quick.bnet_queue_post, at, limit, ctypes.byref(request))
        if rc != 0:
            raise self._refused(rc)
        interrupted = _interrupt.raised() if now else None
        if interrupted is not None:
            raise interrupted

    # ---- what callbacks post ----

    def hold(self, request: Request) -> bool:
        """Once this operation is over, none of another thread runs until :meth:`leave`: what its callbacks post comes
        first, whenever they run. False: it is over already."""
        return bool(self._handle.use(lambda queue: self._quick.bnet_queue_hold(library.address(queue), request)))

    def enter(self, request: Request) -> None:
        """This thread runs the callbacks of an operation that was held."""
        self._handle.use(lambda queue: self._quick.bnet_queue_enter(library.address(queue), request))

    def leave(self, request: Request) -> None:
        """They have returned."""
        self._handle.use(lambda queue: self._quick.bnet_queue_leave(library.address(queue), request))

    def refuse_if_ended(self) -> None:
        """Raises the error of :meth:`run` where the group has ended or belongs to the parent process."""
        self._handle.check()

    def _refused(self, rc: int | None) -> Exception:
        """``rc``: None where the queue is destroyed, or is the parent process's."""
        if rc is not None and rc != -errno.ESHUTDOWN:
            return RuntimeError(f"bagua_net, {self._label}: no operation can start: {os.strerror(-rc)}")
        if self._missing:  # the group was ended while this operation looked for the others
            return failed(self._label, self._missing, 0)
        self._handle.check()
        return self._shut_down()

    def _shut_down(self) -> Exception:
        return failed(self._label, "it was shut down; make a new group", 0)

    def _run_here(self, queue: Any, operation: Any, limit: float, request: Request) -> int:
        out = library.ffi.cast("bnet_ticket_t **", ctypes.addressof(request))
        here, before = _interrupt.runs_handlers(), self._inline
        try:
            if here:
                self._inline = True
            return int(self._lib.bnet_queue_run(queue, operation, limit, _interrupt.callback(), out))
        finally:
            if here:
                self._inline = before

    def _wait_for_ends(self, seen: int) -> int:
        ended = self._handle.use(self._lib.bnet_queue_ended, seen)
        return seen if ended is None else ended

    def progress(self) -> tuple[int, int]:
        """How many operations were accepted so far, and how many of them are over."""
        over = library.ffi.new("uint64_t *")
        posted = self._handle.use(self._lib.bnet_queue_posted, over)
        return int(posted or 0), int(over[0])

    # ---- the other ranks ----

    def _join(self, limit: float, *, now: bool) -> None:
        """Finds the other ranks: here, or on a thread where the caller does not wait. Interrupted, it may run again."""
        self._handle.check()
        with self._joining:
            if self._joined:
                return
            if now:
                self._handle.use(self._find, limit)
            else:
                thread = threading.Thread(target=self._find_for, args=(limit,), name=f"{self._label} rendezvous")
                thread.daemon = True
                thread.start()
            self._joined = True

    def _find_for(self, limit: float) -> None:
        try:
            self._handle.check()
        except RuntimeError:  # the group ends already, without its operations
            self._handle.use(self._lib.bnet_queue_fail, b"the group was shut down before its ranks had met")
        else:
            self._handle.use(self._find_or_fail, limit)

    def _find_or_fail(self, queue: Any, limit: float) -> None:
        """Not on the caller's thread, where a signal handler's exception is the caller's."""
        try:
            self._find(queue, limit)
        except Exception as error:  # or else operations would wait without end
            self._missing = f"the other ranks cannot be found: {type(error).__name__}: {error}"
            self._lib.bnet_queue_fail(queue, self._missing.encode())

    def _find(self, queue: Any, limit: float) -> None:
        try:
            rows = self._endpoint.rows(limit)
        except RankMissing as missing:
            self._missing = str(missing)
            self._lib.bnet_queue_fail(queue, self._missing.encode())
        except RuntimeError as unreachable:  # torch's store errors
            self._lib.bnet_queue_fail(queue, f"the store cannot be reached: {unreachable}".encode())
        else:
            if self._lib.bnet_queue_connect(queue, rows, len(rows), limit) != 0:
                self._lib.bnet_queue_fail(queue, b"out of memory")

    # ---- the end ----

    def refuse(self, reason: Exception) -> None:
        """Accepts no operation from now on. The first reason stays."""
        self._handle.refuse(reason)

    @property
    def interrupted_here(self) -> bool:
        """Is this a signal handler within an operation that the calling thread runs itself?"""
        return self._inline and _interrupt.runs_handlers()

    def abort(self) -> None:
        """Makes the operation in progress, and all later ones, fail. From any thread, at any time."""
        self._endpoint.give_up()
        self._handle.use(lambda _: self._lib.bnet_coll_abort(self._coll))

    def close(self) -> None:
        """Waits for the operations in progress, and releases everything. Repeated calls do nothing.

        An operation of the calling thread itself, interrupted by a signal handler, goes on after the handler, and
        everything is released when it ends. The reporter uses the queue until then, and ends as well.
        """
        self.refuse(self._shut_down())
        self._handle.use(self._drain)
        self._handle.close()

    def _drain(self, queue: Any) -> None:
        self._lib.bnet_queue_close(queue)
        if not self.interrupted_here:
            while self._lib.bnet_queue_drain(queue, _SLICE_S) != 0:
                pass
            self.reporter.close()

    def leave_to_parent(self, refusal: Exception) -> None:
        """In a child of fork(): touches nothing of the library."""
        self._handle.leave_to_parent(refusal)
        self.reporter.leave_to_parent()
        self._joining = threading.RLock()
