# SPDX-License-Identifier: MIT
"""Ranks that wait for each other in different groups, such as one in its algorithm's group, where it has a batch more
than the others, and the others in the default group: none of these groups can see it, and all would wait for their
timeouts.

A process is *blocked* where nothing has moved in its groups for seconds and all of its threads wait (``_blocked.py``).
Blocked processes tell each other in torch's store what they wait for, and the default group's rank 0 looks for some
that wait for each other (``_wait_for_graph.py``).

Processes tell where they are at different times. So rank 0 asks those that it has found a second time. If all are still
where they were, there was a moment between the two at which all were there. They are told, and so is whoever waits
later for a collective that they have given up.

Each rank writes one key and polls one. Rank 0 also polls a count of what was written, and reads what is new. The longer
a process has been blocked, the more seldom it polls: hundreds of ranks may wait for one that saves.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from . import _interrupt
from . import _wait_for_graph as graph
from ._in_flight import InFlight, callers
from ._meeting import Meeting
from ._store import value_of

#: Seconds in which nothing moves before a process is looked at; and where the program has a handler for a signal that
#: announces an end, and that may reach the ranks at different times: until all have it, their handlers' groups wait.
QUIET_S, _WITH_HANDLERS_S = 1.5, 60.0
#: Seconds between two looks at this process, and two at the store; the latter grow with the time since it is blocked.
_LOOK_S, _POLL_S, _LONGEST_POLL_S = 0.25, 0.25, 5.0
_POLL_FRACTION = 16
#: Seconds for which rank 0 waits for the others' answers, and, once it has decided, with its own end: its process often
#: serves the store, where they are to find the decision.
_PATIENCE_S, _FOR_OTHERS_S = 2 * _LONGEST_POLL_S, 0.75
_JOIN_S = 2.0


class Progress(NamedTuple):
    """Of a process in a group, so far."""

    posted: int  # collectives that it has called
    over: int  # and those of them that are over
    messages: dict[int, tuple[int, int]]  # by rank: how many it has sent to it, and received from it


class Member(Protocol):
    """A group, as its member in this process sees it."""

    @property
    def meeting(self) -> Meeting: ...

    @property
    def in_flight(self) -> InFlight: ...

    @property
    def label(self) -> str: ...

    def progress(self) -> Progress: ...

    def fail(self) -> None: ...


class _Decision(NamedTuple):
    """What the default group's rank 0 tells all others: its question, or its decision."""

    by: str  # its identity
    number: int  # of the question
    ranks: list[int]  # whom it asks whether they still are where they were, or who wait for each other
    text: str  # "": it asks
    given_up: dict[str, tuple[int, str]]
    """By group, of all decisions so far: the first collective that some rank has given up, and the decision's text."""

    @staticmethod
    def read(store: Any, by: str) -> _Decision:
        told = value_of(store, "decision")
        found = _Decision(*json.loads(told)) if told else None
        return found if found is not None and found.by == by else _Decision(by, 0, [], "", {})


class _Told(NamedTuple):
    """By a rank: the number of the last question that it has answered, and where it is; None: not blocked."""

    number: int
    record: graph.Record | None

    @staticmethod
    def read(store: Any, rank: int, identity: str) -> _Told:
        by, _, text = value_of(store, f"blocked/{rank}").decode().partition(" ")
        number, _, record = text.partition(" ")
        return _Told(int(number), graph.parsed(record)) if by == identity and record else _Told(0, None)


class _Part:
    """This process's, as long as there is one default group."""

    def __init__(self, world: Member, identities: list[str]) -> None:
        self.world = world
        self._identities = identities
        self._rank = world.meeting.rank
        self._store, self._line = world.meeting.apart()
        self._seen: list[tuple[str, Progress]] = []
        self._since = self._poll_at = time.monotonic()
        self._record: graph.Record | None = None  # what others have been told
        self._answered = 0  # the question that it has answered; 0: none
        self._ended: dict[str, str] = {}  # by group: the decision that has ended it
        self._judge = _Judge(self._store, identities) if self._rank == 0 else None

    def look(self, members: list[Member]) -> None:
        """Raises RuntimeError: the store cannot be reached."""
        from . import _blocked  # which needs what needs this module

        _blocked.note_threads()
        now, seen = time.monotonic(), [(_name(member), member.progress()) for member in members]
        if seen != self._seen:
            self._seen, self._since = seen, now
            self._tell(None)
        elif self._record is None and now - self._since >= (_WITH_HANDLERS_S if _interrupt.expected() else QUIET_S):
            self._tell(_snapshot(members, dict(seen)))
        if now >= self._poll_at:
            self._poll_at = now + min(max(_POLL_S, (now - self._since) / _POLL_FRACTION), _LONGEST_POLL_S)
            self._poll(members)

    def _tell(self, record: graph.Record | None, number: int = 0) -> None:
        if (record, number) != (self._record, 0):
            text = "" if record is None else f"{self._identities[self._rank]} {number} {graph.text_of(record)}"
            self._store.set(f"blocked/{self._rank}", text)
            self._store.add("blocked", 1)
        self._record, self._answered = record, number

    def _poll(self, members: list[Member]) -> None:
        if self._record is not None:
            self._follow(_Decision.read(self._store, self._identities[0]), members)
        if self._judge is not None:
            self._judge.poll()

    def _follow(self, told: _Decision, members: list[Member]) -> None:
        if ended := self._ended_by(told):
            if self._judge is not None:
                time.sleep(_FOR_OTHERS_S)
            self._end(ended, members)
        elif self._rank in told.ranks and not told.text and told.number != self._answered:
            still = _snapshot(members, dict(self._seen)) == self._record
            self._tell(self._record if still else None, told.number if still else 0)

    def _ended_by(self, told: _Decision) -> dict[str, str]:
        """The groups for which this process waits in vain, and the decisions that say so."""
        record = self._record
        calls = [] if record is None else [call for thread in record.threads for call in thread]
        if told.text and self._rank in told.ranks and told.number == self._answered:
            return {call.group: told.text for call in calls}
        over = {call.group: call.over for call in calls if call.source < 0 and call.group in told.given_up}
        found = {group: told.given_up[group] for group in over}
        return {group: text for group, (first, text) in found.items() if over[group] >= first}

    def _end(self, ended: Mapping[str, str], members: list[Member]) -> None:
        self._ended |= ended
        for member in members:
            if _name(member) in ended:
                member.fail()
        self._tell(None)

    def decided(self, group: str) -> str:
        """The decision that ends a group, even if the end of another process was faster."""
        if group not in self._ended and self._waits_for(group):
            ended = self._ended_by(_Decision.read(self._store, self._identities[0]))
            self._ended |= {each: text for each, text in ended.items() if each == group}
        return self._ended.get(group, "")

    def _waits_for(self, group: str) -> bool:
        record = self._record
        return record is not None and any(call.group == group for thread in record.threads for call in thread)


class _Judge:
    """Rank 0 of the default group."""

    def __init__(self, store: Any, identities: list[str]) -> None:
        self._store, self._identities = store, identities
        self._count = 0  # of what was told, when it was read last
        told = _Decision.read(store, identities[0])  # where this process had one group for a while
        self._number = told.number
        self._asked: dict[int, graph.Record] = {}
        self._given_up = told.given_up
        self._until = 0.0

    def poll(self) -> None:
        count = self._store.add("blocked", 0)
        if self._asked:
            self._hear()
        elif count != self._count:
            self._count = count
            told = {rank: self._told(rank).record for rank in range(len(self._identities))}
            blocked = {rank: record for rank, record in told.items() if record is not None}
            self._ask(blocked, graph.deadlocked(blocked))

    def _told(self, rank: int) -> _Told:
        return _Told.read(self._store, rank, self._identities[rank])

    def _ask(self, records: Mapping[int, graph.Record], ranks: set[int]) -> None:
        self._asked = {rank: records[rank] for rank in ranks}
        if ranks:
            self._number += 1
            self._until = time.monotonic() + _PATIENCE_S
            self._say(ranks, "")

    def _hear(self) -> None:
        asked = self._asked
        told = {rank: self._told(rank) for rank in asked}
        moved = [rank for rank in asked if told[rank].record != asked[rank]]
        still = {rank: asked[rank] for rank in asked if told[rank] == (self._number, asked[rank])}
        if len(still) + len(moved) < len(asked) and time.monotonic() < self._until:
            return
        self._asked = {}
        if ranks := graph.deadlocked(still):
            text = graph.sentence(still, ranks)
            for call in graph.in_vain(still, ranks):
                if call.group not in self._given_up or call.over < self._given_up[call.group][0]:
                    self._given_up[call.group] = (call.over, text)
            self._say(ranks, text)

    def _say(self, ranks: set[int], text: str) -> None:
        told = _Decision(self._identities[0], self._number, sorted(ranks), text, self._given_up)
        self._store.set("decision", json.dumps(told))


def _name(member: Member) -> str:
    """The same in all of its processes, and of no other group; "": its ranks have not met."""
    return (member.meeting.identities or [""])[0]


def _snapshot(members: list[Member], progress: Mapping[str, Progress]) -> graph.Record | None:
    """What this process waits for; None: it is not blocked, or something has moved since ``progress``."""
    from . import _blocked  # which needs what needs this module

    by_works = {id(member.in_flight): member for member in members}
    threads = _blocked.threads(callers, [member.in_flight for member in members])
    waits = [[(by_works.get(id(wait.in_flight)), wait.source) for wait in thread.waits] for thread in threads]
    if not threads or any(member is None or not _name(member) for thread in waits for member, _ in thread):
        return None
    calls = [[_call(member, source, progress) for member, source in thread if member is not None] for thread in waits]
    where = [
        f"{thread.where}, {' and '.join(sorted({member.label for member, _ in wait if member is not None}))}"
        for thread, wait in zip(threads, waits, strict=True)
        if thread.where
    ]
    parts = {_name(member): _part(member, progress[_name(member)]) for member in members if _name(member)}
    if any(member.progress() != progress[_name(member)] for member in members):
        return None
    return graph.Record(parts, calls, where)


def _call(member: Member, source: int, progress: Mapping[str, Progress]) -> graph.Call:
    own = progress[_name(member)]
    over = own.over if source < 0 else own.messages.get(source, (0, 0))[1]
    return graph.Call(_name(member), over, source)


def _part(member: Member, own: Progress) -> graph.Part:
    return graph.Part(member.meeting.rank, own.posted, {rank: sent for rank, (sent, _) in own.messages.items() if sent})


class Watch:
    """Looks at this process on a thread of its own, as long as it has two groups or more."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._members: dict[int, Member] = {}
        self._starting = threading.RLock()  # groups are made and ended by any thread, and by signal handlers
        self._thread: threading.Thread | None = None
        self._over: SimpleQueue[None] = SimpleQueue()  # a signal handler may end a group at any point
        self._part: _Part | None = None

    def add(self, member: Member) -> None:
        with self._starting:
            self._members[id(member)] = member
            if len(self._members) > 1 and (self._thread is None or not self._thread.is_alive()):
                self._begin_to_look()

    def _begin_to_look(self) -> None:
        self._over = SimpleQueue()
        thread = threading.Thread(target=self._run, args=(self._over,), name="bagua_net watch", daemon=True)
        try:
            with suppress(RuntimeError):  # no thread can start: a group's timeout will tell
                thread.start()
        finally:  # a signal handler may raise once it runs
            self._thread = thread if thread.ident is not None else None

    def remove(self, member: Member) -> None:
        """Repeated calls do nothing."""
        with self._starting:
            self._members.pop(id(member), None)
            if len(self._members) > 1:
                return
            thread, self._thread = self._thread, None
            self._over.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
        with self._starting:
            if self._thread is None:
                self._part = None

    def _run(self, over: SimpleQueue[None]) -> None:
        try:
            while not _gets(over, _LOOK_S):
                members = list(self._members.values())
                if len(members) > 1:
                    self._look(members)
        except RuntimeError:  # the store's
            return

    def _look(self, members: list[Member]) -> None:
        world: Any = dist.group.WORLD
        if world is None or id(world) not in self._members:
            return
        identities = world.meeting.identities
        part = self._part
        if identities is not None and (part is None or part.world is not world):
            part = self._part = _Part(world, identities)
        if part is not None and part.world is world:
            part.look(members)

    def decided(self, meeting: Meeting) -> str:
        """Why a group was ended; "": it was not, or nobody can tell."""
        part = self._part
        try:
            return "" if part is None or not meeting.identities else part.decided(meeting.identities[0])
        except RuntimeError:  # the store's
            return ""

    def leave_to_parent(self) -> None:
        """In a child of fork(), which does not have the thread."""
        self._begin()


def _gets(queue: SimpleQueue[None], seconds: float) -> bool:
    try:
        queue.get(timeout=seconds)
    except Empty:
        return False
    return True


watch = Watch()
