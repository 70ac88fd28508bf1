# SPDX-License-Identifier: MIT
"""A group's connections: its ranks find each other through torch's store; the library's objects do the rest."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .._native import library
from ._store import appears

#: The version of the network table that is used: the newest.
_API = 12
_DEVICE = 0
#: Point-to-point operations that are reported at a time.
_REPORTS = 16
#: Seconds without progress after which a group ends although sends are pending.
GIVE_UP_S = 30.0
#: bnet_tagged_send's and bnet_tagged_recv's.
_NO_DEADLINE = 0.0
#: struct bnet_tagged_frame of plugin/tagged/frame.h.
_FRAME_BYTES = 40
#: Seconds between two checks for progress.
_LOOK_S = 1.0

_log = logging.getLogger("bagua_net.torch")


def failed(group: str, reason: str | None, rc: int) -> Exception:
    """The exception of a failed operation."""
    error: Exception = dist.DistBackendError(f"bagua_net, {group}: {reason or f'error {-rc}'}")
    return error


class RankMissing(Exception):
    """A rank has not published its row in time, or the wait was aborted."""


class Rendezvous:
    """Rows of bytes that every rank of a group publishes in torch's store."""

    def __init__(self, store: Any, rank: int, nranks: int) -> None:
        self._store = store
        self._nranks = nranks
        # A store may outlive a group, and another group of the same name may follow. Each rank counts the groups that
        # it has made in this store, separately for each size: a trainer may restart with fewer ranks and later with all
        # of them again, so that some ranks have made fewer groups in total, but all have made as many of this size.
        self.generation = f"{nranks}/{store.add(f'made/{nranks}/{rank}', 1)}"

    def publish(self, kind: str, rank: int, row: bytes) -> None:
        self._store.set(f"{self.generation}/{kind}/{rank}", row)

    def collect(self, kind: str, timeout_s: float, given_up: threading.Event) -> list[bytes]:
        """All ranks' rows, once published. Raises RankMissing, or the store's own error where it is unreachable."""
        deadline, rows = time.monotonic() + timeout_s, []
        for rank in range(self._nranks):
            key = f"{self.generation}/{kind}/{rank}"
            if appears(self._store, key, deadline, given_up):
                rows.append(bytes(self._store.get(key)))
            elif given_up.is_set():
                raise RankMissing(f"aborted while rank {rank} had not made this group")
            else:
                raise RankMissing(
                    f"rank {rank} has not made this group within {timeout_s:g} s; is that process running, "
                    "and does it make the same groups in the same order, with the same backend?"
                )
        return rows


class Endpoint:
    """The library's group object: it listens from the start and connects on first use."""

    def __init__(self, kind: str, group: str, rendezvous: Rendezvous, rank: int, nranks: int) -> None:
        self._lib = library.load()
        self._kind = kind
        self._group = group
        self._rendezvous = rendezvous
        self._given_up = threading.Event()
        out = library.ffi.new("bnet_coll_t **")
        table = self._lib.bnet_net_table(_API)
        self.check(library.ffi.NULL, self._lib.bnet_coll_create(out, table, _API, _DEVICE, rank, nranks))
        self.coll = out[0]
        try:
            row = library.ffi.new("char[]", self._lib.bnet_coll_handle_size(self.coll))
            self.check(self.coll, self._lib.bnet_coll_listen(self.coll, row))
            rendezvous.publish(kind, rank, bytes(library.ffi.buffer(row)))
        except BaseException:
            self._lib.bnet_coll_destroy(self.coll)
            raise

    def check(self, coll: Any, rc: int) -> None:
        if rc != 0:
            raise failed(self._group, library.text(self._lib.bnet_coll_error(coll)), rc)

    def rows(self, timeout_s: float) -> Any:
        """All ranks' rows as one C array. Raises DistBackendError where one is missing after the timeout."""
        try:
            rows = self._rendezvous.collect(self._kind, timeout_s, self._given_up)
        except RankMissing as missing:
            raise failed(self._group, str(missing), 0) from None
        return library.ffi.from_buffer(b"".join(rows))

    def give_up(self) -> None:
        """Aborts the wait for other ranks' rows. From any thread."""
        self._given_up.set()

    def close(self) -> None:
        """Closes the sockets, unless another object has taken them over. Repeated calls do nothing."""
        coll, self.coll = self.coll, library.ffi.NULL
        self._lib.bnet_coll_destroy(coll)


class Collectives:
    """The library's collectives. For one thread at a time, except :meth:`abort`."""

    def __init__(self, group: str, rendezvous: Rendezvous, rank: int, nranks: int, timeout_s: float) -> None:
        self._lib = library.load()
        self._endpoint = Endpoint("collectives", group, rendezvous, rank, nranks)
        self._coll = self._endpoint.coll
        self._lock = threading.RLock()  # between abort and close
        self._calling = False
        self._closed = False
        self._connected = False
        self._limit_s: float | None = None
        self.timeout_s = timeout_s

    def call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> None:
        """``bnet_coll_<name>(group, *arguments)``; the first call connects.

        Args:
            timeout_s: seconds without any progress after which it fails; None: the group's.

        Raises:
            DistBackendError: it failed, and so will every later call.
        """
        self._calling = True
        try:
            self._call(name, arguments, self.timeout_s if timeout_s is None else timeout_s)
        finally:
            self._calling = False
            if self._closed:
                self.close()

    def _call(self, name: str, arguments: tuple[Any, ...], limit: float) -> None:
        if not self._connected:
            rows = self._endpoint.rows(limit)
            self._connected = True  # also where connecting fails: then every operation reports the reason
            self._endpoint.check(self._coll, self._lib.bnet_coll_connect(self._coll, rows, limit))
        if limit != self._limit_s:
            self._lib.bnet_coll_set_timeout(self._coll, limit)
            self._limit_s = limit
        self._endpoint.check(self._coll, getattr(self._lib, f"bnet_coll_{name}")(self._coll, *arguments))

    def abort(self) -> None:
        """Makes the operation in progress, and all later ones, fail. From any thread, at any time."""
        self._endpoint.give_up()
        with self._lock:
            self._lib.bnet_coll_abort(self._coll)

    def close(self) -> None:
        """Releases everything. Repeated calls do nothing.

        An operation in progress here is the calling thread's own, interrupted by a signal handler: then everything is
        released when that operation ends.
        """
        self._closed = True
        if self._calling:
            return
        with self._lock:
            coll, self._coll = self._coll, library.ffi.NULL
        self._lib.bnet_coll_destroy(coll)


Report = Callable[[Exception | None, int], None]


class Messages:
    """Tagged messages between any two ranks. All methods may be called from any thread.

    A separate thread moves the data and calls the reports; it starts with the first message and sleeps while there is
    nothing to do. Messages have no deadline: in the library, one that expires would end all of them. The ranks must
    meet within the group's timeout.
    """

    def __init__(self, group: str, rendezvous: Rendezvous, rank: int, nranks: int, timeout_s: float) -> None:
        self._lib = library.load()
        self._group = group
        self._endpoint = Endpoint("messages", group, rendezvous, rank, nranks)
        self._lock = threading.RLock()  # a signal handler may abort at any point
        self._sent = threading.Condition(self._lock)
        self._reports: dict[int, Report] = {}
        self._sends: set[int] = set()
        self._next = 0
        self._tagged = library.ffi.NULL
        self._thread: threading.Thread | None = None
        self._refusal = ""  # why no more messages are accepted; "": they are
        self._posting = False
        self._closed = False
        self.timeout_s = timeout_s

    def send(self, buffer: Any, nbytes: int, peer: int, tag: int, report: Report) -> None:
        """Sends the bytes; calls ``report(error or None, peer)`` when the buffer may be reused."""
        self._post(self._lib.bnet_tagged_send, buffer, nbytes, peer, tag, _NO_DEADLINE, report)

    def receive(self, buffer: Any, nbytes: int, peer: int, tag: int, report: Report) -> None:
        """Receives a message from ``peer``, or from any rank (-1). The report names the sender."""
        self._post(self._lib.bnet_tagged_recv, buffer, nbytes, peer, tag, _NO_DEADLINE, report)

    def _post(
        self, function: Any, buffer: Any, nbytes: int, peer: int, tag: int, timeout_s: float, report: Report
    ) -> None:
        try:
            with self._lock:
                if self._refusal:
                    raise RuntimeError(self._refusal)
                self._posting = True
                try:
                    rc = self._hand_over(function, buffer, nbytes, peer, tag, timeout_s, report)
                finally:
                    self._posting = False
        finally:
            if self._closed:
                self.close()
        if rc != 0:
            raise failed(self._group, f"no message can be exchanged with rank {peer}", rc)

    def _hand_over(
        self, function: Any, buffer: Any, nbytes: int, peer: int, tag: int, timeout_s: float, report: Report
    ) -> int:
        self._start(timeout_s)
        number = self._next
        self._next += 1
        self._reports[number] = report
        if function == self._lib.bnet_tagged_send:
            self._sends.add(number)
        try:
            rc = int(function(self._tagged, buffer, nbytes, peer, tag, timeout_s, number))
        except (TypeError, OverflowError):  # a bad argument: the library was not called
            self._forget(number)
            raise
        if rc != 0:
            self._forget(number)
        return rc

    def _forget(self, number: int) -> None:
        del self._reports[number]
        self._sends.discard(number)

    def _start(self, timeout_s: float) -> None:
        if self._thread is not None:
            return
        if not self._tagged:
            rows = self._endpoint.rows(timeout_s or self.timeout_s)
            if self._refusal:
                raise RuntimeError(self._refusal)
            out = library.ffi.new("bnet_tagged_t **")
            self._endpoint.check(self._endpoint.coll, self._lib.bnet_tagged_create(out, self._endpoint.coll, rows))
            self._tagged, self._endpoint.coll = out[0], library.ffi.NULL
        done = library.ffi.new("bnet_tagged_done_t[]", _REPORTS)
        name = f"{self._group} messages"
        thread = threading.Thread(target=self._serve, args=(self._tagged, done), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _serve(self, tagged: Any, done: Any) -> None:
        while True:
            count = self._lib.bnet_tagged_progress(tagged, done, _REPORTS)
            if count == 0:
                return
            for row in done[0:count]:
                self._report(row)

    def _report(self, row: Any) -> None:
        """Never raises: only this thread can end the messages still in progress."""
        number, rc, peer = row.id, row.rc, row.peer
        with self._lock:
            report = self._reports.pop(number)
        try:
            report(failed(self._group, library.text(row.error), rc) if rc != 0 else None, peer)
        except BaseException as unexpected:
            self._report_failure(report, unexpected, peer)
        finally:
            with self._lock:
                self._sends.discard(number)
                self._sent.notify_all()

    def _report_failure(self, report: Report, unexpected: BaseException, peer: int) -> None:
        try:
            report(failed(self._group, repr(unexpected), 0), peer)
        except BaseException as error:  # reporting does not work: end all messages
            with self._lock:
                self._refusal = self._refusal or f"{self._group} could not report a message: {error!r}"
                self._lib.bnet_tagged_stop(self._tagged)

    def finish_sends(self) -> None:
        """Returns when all sends are done; accepts no more.

        It also returns after :data:`GIVE_UP_S` without progress: otherwise, a program that fails and destroys the group
        on its way out while its peers wait elsewhere would never show its error. Seconds are counted one at a time,
        because this process and its peers may have been stopped in between.
        """
        with self._lock:
            self._refuse()
            moved, idle_s = self._moved(), 0.0
            while self._sends and idle_s < GIVE_UP_S:
                if self._sent.wait(_LOOK_S) or self._moved() != moved:
                    moved, idle_s = self._moved(), 0.0
                else:
                    idle_s += _LOOK_S
            if self._sends:
                text = "%s ends with %d sends that nobody has received, and nothing has moved for %g s"
                _log.warning(text, self._group, len(self._sends), idle_s)

    def _moved(self) -> int:
        """Bytes that this process has sent, in any group, without the frames: each second, a waiting send asks by an
        empty frame whether its peer is alive.
        """
        counters = library.ffi.new("bnet_counters_t *")
        self._lib.bnet_counters(counters)
        return int(counters.bytes_sent - _FRAME_BYTES * counters.messages_sent)

    def _refuse(self) -> None:
        self._refusal = f"{self._group} was shut down; make a new group"

    def abort(self) -> None:
        """Makes all pending messages fail. From any thread, at any time."""
        self._endpoint.give_up()
        with self._lock:
            self._refuse()
            if self._tagged:
                self._lib.bnet_tagged_stop(self._tagged)

    def close(self) -> None:
        """Releases everything; pending messages fail. Repeated calls do nothing.

        Called by a signal handler that has interrupted a post of its own thread, it leaves the release to that post.
        """
        self.abort()
        with self._lock:
            self._closed = True
            if self._posting:
                return
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            tagged, self._tagged = self._tagged, library.ffi.NULL
        if tagged:
            self._lib.bnet_tagged_destroy(tagged)
        self._endpoint.close()

    def leave_to_parent(self, refusal: str) -> None:
        """In a child of fork(), which has none of the threads: touches nothing of the library."""
        self._lock = threading.RLock()
        self._sent = threading.Condition(self._lock)
        self._refusal = refusal
