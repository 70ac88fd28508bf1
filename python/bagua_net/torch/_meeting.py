# SPDX-License-Identifier: MIT
"""How the ranks of a group know that they live at the same time.

A store may outlive the processes that wrote to it: torchrun's serves all lives of a job, and a file stays. So a key
says only that some process has once written it. Nothing that a store contains tells how many lives there were (a rank
may have died before it wrote anything), torchrun's count of restarts is each agent's own, and so is a host's clock.

What proves that a peer lives is an answer to something that is new. Each rank of a group draws a random identity:

1. Rank 0 writes its identity into ``call``.
2. Every other rank answers in ``answer/RANK`` with that identity and its own, again for each new call.
3. Once all have answered its call, rank 0 writes all identities beside it. They have met.

A rank has met the others when it finds its own identity there: who wrote it has read it, so rank 0 lives in this life,
and all others do because they have answered rank 0. What earlier lives have left never has the right identities, and is
overwritten: a group has one ``call``, and one value of each other key for each rank. A rank that starts late, or again,
answers the call that it finds; if it is the call of a dead rank 0, the answer is in vain, and the next call comes.

A rank may destroy a group and make another of the same name, and rank 0 may do so before others have seen that they had
met. So a new call keeps the identities of those who had met last: who finds itself there answers no other call.

A thread does this for each group until its ranks have met: a rank that computes for minutes must answer nevertheless,
since the messages of others may depend on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ._store import PAUSE_S, GivenUp, becomes, value_of

#: Seconds between two polls of the thread, at most: while somebody waits for the others, and otherwise.
_WAITED_FOR_S, _UNHURRIED_S = 0.02, 0.1
#: Seconds between two looks of somebody who waits for ranks that have refused to come.
_LOOK_S = 1.0
#: Seconds for which a rank that does not come waits for rank 0, to tell it so.
_CALL_S = 3.0
#: Seconds after a group was made in which its orderly end waits for the ranks that have not met yet.
_PATIENCE_S = 10.0
#: Seconds for which the end of a group waits for the thread, which the store may hold up.
_JOIN_S = 2.0


def _has_descriptors() -> bool:
    """torch would try to connect until the store's timeout."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class _Line:
    """A connection to the store that no other thread occupies, whose waits may depend on this one."""

    def __init__(self, base: Any) -> None:
        self.base = base  # its id is not used again meanwhile
        self.store = base.clone() if isinstance(base, dist.TCPStore) and _has_descriptors() else base


_lines: weakref.WeakValueDictionary[int, _Line] = weakref.WeakValueDictionary()


def _line(base: Any) -> _Line:
    found = _lines.get(id(base))
    if found is None:
        found = _lines[id(base)] = _Line(base)
    return found


def _innermost(store: Any) -> Any:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


class Meeting:
    """One rank's part. It ends with :meth:`close`."""

    def __init__(
        self, store: Any, rank: int, nranks: int, when_met: Callable[[Any, list[str]], None] = lambda *_: None
    ) -> None:
        """``when_met``: called once by the thread, with a store and all identities. It does not know the meeting."""
        self._when_met = when_met
        self._is_over = False
        self.rank, self.nranks = rank, nranks
        self.identity = secrets.token_hex(16)
        #: Of all ranks, once they have met.
        self.identities: list[str] | None = [self.identity] if nranks == 1 else None
        # The group's keys by a name that does not depend on the prefixes around `store`, which nobody can tell.
        name = store.compare_set("bagua_net", "", self.identity).decode()
        base = _innermost(store)
        self.store = dist.PrefixStore(f"bagua_net/{name}", base)
        self._base, self._name = base, name
        self._made = time.monotonic()
        self._given_up = GivenUp()
        self._is_waited_for = False
        self._look_at = self._made + _LOOK_S
        #: Why a rank does not come; "": as far as is known, all do.
        self.refusal = ""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._first = threading.RLock()  # the step that the caller of begin() makes
        self._before: list[str] = []  # who had met in rank 0's group before this one
        self._answered: list[str] = []  # rank 0: identities of the first ranks; the others: the calls, one or none
        self._has_called = False

    def begin(self) -> None:
        """Once everything that others read is published. Raises the store's errors, or RuntimeError where no thread can
        start."""
        if self.identities is not None:
            return
        thread = threading.Thread(target=self._run, name="bagua_net meeting", daemon=True)
        with self._first:  # a rank that cannot go on has answered no call
            thread.start()
            self._thread = thread
            try:
                self.step()
            except BaseException:
                self.give_up()
                raise

    # ---- waiting ----

    def wait(self, deadline: float, given_up: GivenUp) -> bool:
        """Have all ranks met before the deadline (of time.monotonic())? Ends early once given up.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        self._is_waited_for = True
        return becomes(self._is_settled, deadline, given_up) and self.identities is not None

    def _is_settled(self) -> bool:
        if self._error is not None and self.identities is None:
            raise type(self._error)(*self._error.args)
        return self.identities is not None or self._is_refused()

    def _is_refused(self) -> bool:
        """Looks once a second."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            call = self._called()
            for rank in range(self.nranks) if call else ():
                refused, _, why = value_of(self.store, f"refusal/{rank}").decode().partition(" ")
                if refused == call:
                    self.refusal = f"rank {rank} could not make this group: {why}"
        return bool(self.refusal)

    def _called(self) -> str:
        return self.identity if self.rank == 0 else str(_parsed(value_of(self.store, "call"))["call"])

    def missing(self) -> list[int]:
        """The ranks that have not come, as far as this rank can know."""
        if self.identities is not None:
            return []
        call = self._called()
        silent = [
            rank
            for rank in range(1, self.nranks)
            if rank != self.rank and (not call or _answer(self.store, rank)[0] != call)
        ]
        return silent if silent and call else [0]

    def identity_of(self, rank: int) -> str:
        """On rank 0, of a rank that has answered; "": it has not."""
        if self.identities is not None:
            return self.identities[rank]
        call, identity = _answer(self.store, rank)
        return identity if call == self.identity else ""

    # ---- the thread ----

    def _run(self) -> None:
        pause_s = PAUSE_S
        with self._first:
            pass
        try:
            store, _held = self.apart()
            while self.identities is None and not self._given_up.is_set() and not self.step(store):
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _WAITED_FOR_S if self._is_waited_for else _UNHURRIED_S)
            if self.identities is not None:
                self._when_met(store, self.identities)
                self._is_over = True
        except RuntimeError as error:  # the store's
            self._error = error.with_traceback(None)  # whose frames have the connection

    def apart(self) -> tuple[Any, object]:
        """The group's keys by a connection that no other thread occupies for long, as long as the second object lives.

        Raises RuntimeError, the store's."""
        line = _line(self._base)
        return dist.PrefixStore(f"bagua_net/{self._name}", line.store), line

    def step(self, store: Any = None) -> bool:
        """Looks once at what the others have written, and writes what is due. Have they met? For one thread at a time.
        ``store``: another connection to it."""
        store = store or self.store
        return self._call(store) if self.rank == 0 else self._reply(store)

    def _call(self, store: Any) -> bool:
        if not self._has_called:
            found = _parsed(value_of(store, "call"))
            self._before = found["met"] or found["before"]
            self._tell(store, [])
            self._has_called = True
        while len(self._answered) < self.nranks - 1:
            call, identity = _answer(store, len(self._answered) + 1)
            if call != self.identity:
                return False
            self._answered.append(identity)
        # One that has answered early may have started again since.
        answers = [_answer(store, rank)[1] for rank in range(1, self.nranks)]
        self._tell(store, [self.identity, *answers])
        self.identities = [self.identity, *answers]
        return True

    def _tell(self, store: Any, met: list[str]) -> None:
        store.set("call", json.dumps({"call": self.identity, "met": met, "before": self._before}))

    def _reply(self, store: Any) -> bool:
        found = _parsed(value_of(store, "call"))
        for met in (found["met"], found["before"]):
            if met[self.rank : self.rank + 1] == [self.identity]:
                self.identities = met
                return True
        if found["call"] and self._answered != [found["call"]]:
            store.set(f"answer/{self.rank}", f"{found['call']} {self.identity}")
            self._answered = [found["call"]]
        return False

    # ---- failures ----

    def refuse(self, why: str) -> None:
        """Tells those who wait why this rank does not come, by the call that it would have answered, for which it waits
        some seconds."""
        with contextlib.suppress(RuntimeError):  # the store's
            if self.rank == 0:
                self._call(self.store)
            else:
                becomes(self._is_called, time.monotonic() + _CALL_S, self._given_up)
            if call := self._called():
                self.store.set(f"refusal/{self.rank}", f"{call} {why}")

    def _is_called(self) -> bool:
        """By a rank 0 whose group has not met yet."""
        found = _parsed(value_of(self.store, "call"))
        return bool(found["call"]) and not found["met"]

    def tell_failure(self, why: str) -> None:
        """Why the group has failed on this rank. Raises RuntimeError where the store cannot be reached."""
        self.store.set(f"failure/{self.rank}", f"{self.identity} {why}")

    def failure_of(self, rank: int) -> str:
        """What that rank has told; "": nothing yet, or the ranks have not met."""
        identity, _, why = value_of(self.store, f"failure/{rank}").decode().partition(" ")
        return why if self.identities is not None and self.identities[rank] == identity else ""

    # ---- the end ----

    def finish(self) -> None:
        """Before an orderly end: this rank may have come and gone before others arrive, whose messages to each other do
        not need it. They would take it for dead."""
        if self._thread is not None and not self._is_waited_for and self._error is None:
            is_over = lambda: self._is_over or self._error is not None  # noqa: E731
            becomes(is_over, self._made + _PATIENCE_S, self._given_up)

    def give_up(self) -> None:
        """Ends every wait. From any thread, at any time."""
        self._given_up.set()

    def close(self) -> None:
        """Ends the thread. Repeated calls do nothing."""
        self.give_up()
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _parsed(value: bytes) -> dict[str, Any]:
    return {"call": "", "met": [], "before": []} | (json.loads(value) if value else {})


def _answer(store: Any, rank: int) -> tuple[str, str]:
    """To which call, and the rank's identity."""
    call, _, identity = value_of(store, f"answer/{rank}").decode().partition(" ")
    return call, identity
