# SPDX-License-Identifier: MIT
"""A group's point-to-point messages: tagged, between any two ranks, independent of the collectives."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

from .._native import library
from ._handle import Handle
from ._rendezvous import Endpoint, RankMissing, Rendezvous, failed
from ._reporter import Reporter
from ._request import Request

#: Seconds without progress after which a group ends although sends are pending.
GIVE_UP_S = 30.0
#: struct bnet_tagged_frame of host/tagged/frame.h.
_FRAME_BYTES = 40
#: Seconds between two checks for progress.
_LOOK_S = 1.0

_log = logging.getLogger("bagua_net.torch")


class Messages:
    """All methods may be called from any thread.

    A thread of the library moves the data; it starts with the first message and sleeps while there is nothing to do.
    Messages have no deadline: in the library, one that expires would end all of them. The ranks must meet within the
    group's timeout.
    """

    def __init__(self, label: str, rendezvous: Rendezvous, rank: int, nranks: int, timeout_s: float) -> None:
        self._lib, quick = library.load_host(), library.quick()
        self._send, self._recv = quick.bnet_messages_send, quick.bnet_messages_recv
        self._label, self._nranks = label, nranks
        self._endpoint = Endpoint("messages", label, rendezvous, rank, nranks, collective=False)
        self._handle: Handle | None = None  # once the first message was posted
        self._starting = threading.RLock()  # a signal handler may abort at any point
        self._refusal: Exception | None = None  # why no message is accepted any more; None: they are
        self.reporter = Reporter(f"{label} message futures", self._wait_for_ends)
        self.timeout_s = timeout_s

    # ---- messages ----

    def post(self, sends: bool, request: Request, address: int, nbytes: int, peer: int, tag: int) -> None:
        """Sends the bytes there, or receives them, from ``peer`` or any rank (-1): the request's result names it.

        They must live, and those sent may not change, until the request is over.

        Args:
            request: an empty one, filled in by the post: an exception that follows cannot lose it.
            peer, tag: of the group's ranks, and of 64 bits: others are not noticed.

        Raises:
            RuntimeError: the group belongs to the parent process.
            DistBackendError: it has ended, or that peer cannot be sent to.
        """
        handle = self._handle or self._start()
        rc = handle.call(self._send if sends else self._recv, address, nbytes, peer, tag, ctypes.byref(request))
        if rc != 0:
            raise failed(self._label, f"no message can be exchanged with rank {peer}", rc)

    def _start(self) -> Handle:
        with self._starting:
            if self._handle is not None:
                return self._handle
            self._refuse_if_ended()
            rows = self._rows()
            self._refuse_if_ended()  # a signal handler has ended the group meanwhile
            handle = self._create(rows)
            if self._refusal is not None:
                handle.refuse(self._refusal)
                handle.close()
            return handle

    def _refuse_if_ended(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _rows(self) -> bytes:
        try:
            return self._endpoint.rows(self.timeout_s)
        except RankMissing as missing:
            raise failed(self._label, str(missing), 0) from None

    def _create(self, rows: bytes) -> Handle:
        """The library's object for messages. It takes the group over, which nobody else ends from here on."""
        tagged, messages = library.ffi.new("bnet_tagged_t **"), library.ffi.new("bnet_messages_t **")
        coll, self._endpoint.coll = self._endpoint.coll, library.ffi.NULL
        try:
            if coll == library.ffi.NULL:
                raise self._shut_down()
            rc = self._lib.bnet_tagged_create(tagged, coll, rows)
            if rc != 0:
                raise failed(self._label, library.text(self._lib.bnet_coll_error(coll)), rc)
            rc = self._lib.bnet_messages_create(messages, tagged[0])
            if rc != 0:
                raise failed(self._label, "no thread can start for messages", rc)
            self._handle = Handle(messages[0], self._lib.bnet_messages_destroy)
        except BaseException as error:
            if self._handle is None:
                if isinstance(error, RuntimeError):  # or else it is a signal handler's, which ends the whole group
                    self.refuse(type(error)(*error.args))
                self._destroy(coll, tagged[0], messages[0])
            raise
        return self._handle

    def _shut_down(self) -> Exception:
        return failed(self._label, "it was shut down; make a new group", 0)

    def _destroy(self, coll: Any, tagged: Any, messages: Any) -> None:
        """Each owns the one before it."""
        if messages != library.ffi.NULL:
            self._lib.bnet_messages_destroy(messages)
        elif tagged != library.ffi.NULL:
            self._lib.bnet_tagged_destroy(tagged)
        else:
            self._lib.bnet_coll_destroy(coll)

    def _wait_for_ends(self, seen: int) -> int:
        assert self._handle is not None
        ended = self._handle.use(self._lib.bnet_messages_ended, seen)
        return seen if ended is None else ended

    def progress(self) -> dict[int, tuple[int, int]]:
        """How many messages were sent to each rank so far, and how many were received from it. Others have had none."""
        handle = self._handle
        return (handle.use(self._counts) if handle is not None else None) or {}

    def _counts(self, messages: Any) -> dict[int, tuple[int, int]]:
        sent, received = library.ffi.new("uint64_t *"), library.ffi.new("uint64_t *")
        counts: dict[int, tuple[int, int]] = {}
        for peer in range(self._nranks):
            self._lib.bnet_messages_count(messages, peer, sent, received)
            if sent[0] or received[0]:
                counts[peer] = int(sent[0]), int(received[0])
        return counts

    # ---- the end ----

    def finish_sends(self) -> None:
        """Returns when all sends are done; accepts no more.

        It also returns after :data:`GIVE_UP_S` without progress: otherwise, a program that fails and destroys the group
        on its way out while its peers wait elsewhere would never show its error. Seconds are counted one at a time,
        because this process and its peers may have been stopped in between.
        """
        self.refuse(self._shut_down())
        if self._handle is not None:
            self._handle.use(self._finish_sends)

    def _finish_sends(self, messages: Any) -> None:
        left, moved, idle_s = self._lib.bnet_messages_sends(messages), self._moved(), 0.0
        while self._lib.bnet_messages_drain(messages, _LOOK_S) != 0 and idle_s < GIVE_UP_S:
            before = (left, moved)
            left, moved = self._lib.bnet_messages_sends(messages), self._moved()
            idle_s = 0.0 if (left, moved) != before else idle_s + _LOOK_S
        left = self._lib.bnet_messages_sends(messages)
        if left:
            text = "%s ends with %d sends that nobody has received, and nothing has moved for %g s"
            _log.warning(text, self._label, left, idle_s)

    def _moved(self) -> int:
        """Bytes that this process has sent, in any group, without the frames: each second, a waiting send asks by an
        empty frame whether its peer is alive.
        """
        counters = library.ffi.new("bnet_counters_t *")
        library.load().bnet_counters(counters)
        return int(counters.bytes_sent - _FRAME_BYTES * counters.messages_sent)

    def refuse(self, reason: Exception) -> None:
        """Accepts no message from now on. The first reason stays."""
        self._refusal = self._refusal or reason
        if self._handle is not None:
            self._handle.refuse(self._refusal)

    def abort(self) -> None:
        """Makes all pending messages fail. From any thread, at any time."""
        self.refuse(self._shut_down())
        self._endpoint.give_up()
        if self._handle is not None:
            self._handle.use(self._lib.bnet_messages_stop)

    def close(self) -> None:
        """Releases everything; pending messages fail. Repeated calls do nothing."""
        self.abort()
        with self._starting:
            self.refuse(self._shut_down())
            if self._handle is not None:
                self.abort()  # it may have started just now
                self.reporter.close()
                self._handle.close()
            self._endpoint.close()

    def leave_to_parent(self, refusal: Exception) -> None:
        """In a child of fork(): touches nothing of the library."""
        self._starting = threading.RLock()
        self._refusal = refusal
        self._endpoint.coll = library.ffi.NULL
        if self._handle is not None:
            self._handle.leave_to_parent(refusal)
        self.reporter.leave_to_parent()
