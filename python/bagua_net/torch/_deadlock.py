# SPDX-License-Identifier: MIT
"""Ranks that wait for each other in different groups, such as one in its algorithm's group, where it has a batch more
than the others, and the others in the default group: none of these groups can see it, and all would wait for their
timeouts.

A process is *blocked* where nothing has moved in its groups for seconds and all of its threads wait (``_blocked.py``).
Blocked processes tell each other in torch's store what they wait for. One in a collective waits for every rank that
has not called it, which its count of calls shows; one in a receive for the sender, if all that this has sent has
arrived. So a slow network is never taken for a deadlock, nor is a rank that computes or saves. Such a wait ends only by
an act of the other process, and a process that is blocked acts no more unless one of its waits ends. Therefore those
that remain when all are taken away, again and again, that have a thread which waits for none of the remaining, wait for
ever (the standard reduction of a wait-for graph: Holt, Computing Surveys 4(3), 1972).

What was told at different times need not hold at one time. So the default group's rank 0, which decides, asks those
that remain once more; where all still are where they were, they were so in between, all at the same time.

Each rank writes one key and polls one. Rank 0 also polls a count of what was written, and reads what is new. The longer
a process has been blocked, the more seldom it polls: hundreds of ranks may wait for one that saves.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from ._in_flight import InFlight, callers
from ._meeting import Meeting
from ._store import value_of

#: Seconds in which nothing moves before a process is looked at.
QUIET_S = 1.5
#: Seconds between two looks at this process, and two at the store; the latter grow with the time since it is blocked.
_LOOK_S, _POLL_S, _LONGEST_POLL_S = 0.25, 0.25, 5.0
_POLL_FRACTION = 16
#: Seconds for which rank 0 waits for the others' answers, and, once it has decided, with its own end: its process often
#: serves the store, where they are to find the decision.
_PATIENCE_S, _FOR_OTHERS_S = 2 * _LONGEST_POLL_S, 0.75
#: Calls that an error names, and ranks of each.
_NAMED = 4
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


class Call(NamedTuple):
    """What a thread waits for, as others see it."""

    group: str  # the identity of the group's rank 0
    over: int  # collectives of the group that are over here; of messages: those from the source that have arrived
    source: int  # of a message, a rank of the group; -1: a collective


class Part(NamedTuple):
    """Of a process in a group."""

    rank: int
    posted: int  # collectives that it has called
    sent: Mapping[int, int]  # messages, by rank


class Record(NamedTuple):
    """Of a process that is blocked."""

    parts: Mapping[str, Part]
    threads: list[list[Call]]  # what each of its threads waits for
    where: list[str]  # for people: each thread's


def deadlocked(records: Mapping[int, Record]) -> set[int]:
    """Those of the processes that wait for each other for ever; empty: perhaps none do."""
    left = set(records)
    while True:
        free = {
            each for each in left if any(not _is_held(records, each, calls, left) for calls in records[each].threads)
        }
        if not free:
            return left
        left -= free


def _is_held(records: Mapping[int, Record], process: int, calls: Iterable[Call], by: set[int]) -> bool:
    """Does one of its threads wait for one of these other processes?"""
    own = records[process].parts
    return any(_waits_for(records[other].parts, call, own) for call in calls for other in by if other != process)


def _waits_for(theirs: Mapping[str, Part], call: Call, own: Mapping[str, Part]) -> bool:
    part = theirs.get(call.group)
    if part is None or call.group not in own:
        return False
    if call.source < 0:
        return part.posted <= call.over
    return part.rank == call.source and part.sent.get(own[call.group].rank, 0) <= call.over


def _text(record: Record) -> str:
    return json.dumps([{group: list(part) for group, part in record.parts.items()}, record.threads, record.where])


def _record(text: str) -> Record:
    parts, threads, where = json.loads(text)
    read = {
        group: Part(rank, posted, {int(peer): count for peer, count in sent.items()})
        for group, (rank, posted, sent) in parts.items()
    }
    return Record(read, [[Call(*call) for call in calls] for calls in threads], where)


def _sentence(records: Mapping[int, Record], ranks: Iterable[int]) -> str:
    by_place: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_place.setdefault(" and ".join(records[rank].where), []).append(rank)
    told = [f"{_ranks(those)} in {where}" for where, those in list(by_place.items())[:_NAMED]]
    more = f"; and {len(by_place) - _NAMED} other calls" if len(by_place) > _NAMED else ""
    return (
        f"ranks wait for each other, in different groups: {'; '.join(told)}{more}. Do all ranks have as many batches, "
        "and make the same calls in the same order?"
    )


def _ranks(those: list[int]) -> str:
    more = f" and {len(those) - _NAMED} more" if len(those) > _NAMED else ""
    return f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those[:_NAMED]))}{more}"


# ---- this process ----


class _Decision(NamedTuple):
    """What the default group's rank 0 tells all others: its question, or its decision."""

    by: str  # its identity
    number: int  # of the question
    ranks: list[int]  # whom it asks whether they still are where they were, or who wait for each other
    text: str  # "": it asks

    @staticmethod
    def read(store: Any, by: str) -> _Decision:
        told = value_of(store, "decision")
        found = _Decision(*json.loads(told)) if told else _Decision("", 0, [], "")
        return found if found.by == by else _Decision(by, 0, [], "")


class _Told(NamedTuple):
    """By a rank: the number of the last question that it has answered, and where it is; None: not blocked."""

    number: int
    record: Record | None

    @staticmethod
    def read(store: Any, rank: int, identity: str) -> _Told:
        by, _, text = value_of(store, f"blocked/{rank}").decode().partition(" ")
        number, _, record = text.partition(" ")
        return _Told(int(number), _record(record)) if by == identity and record else _Told(0, None)


class _Part:
    """This process's, as long as there is one default group."""

    def __init__(self, world: Member, identities: list[str]) -> None:
        self.world = world
        self._identities = identities
        self._rank = world.meeting.rank
        self._store, self._line = world.meeting.apart()
        self._seen: list[tuple[str, Progress]] = []
        self._since = self._poll_at = time.monotonic()
        self._record: Record | None = None  # what others have been told
        self._answered = 0
        self.text = ""  # of the decision that has ended this process's operations
        self._judge = _Judge(self._store, identities) if self._rank == 0 else None

    def look(self, members: list[Member]) -> None:
        """Raises RuntimeError: the store cannot be reached."""
        now, seen = time.monotonic(), [(_name(member), member.progress()) for member in members]
        if seen != self._seen:
            self._seen, self._since = seen, now
            self._tell(None)
        elif self._record is None and now - self._since >= QUIET_S:
            self._tell(_snapshot(members, dict(seen)))
        if now >= self._poll_at:
            self._poll_at = now + min(max(_POLL_S, (now - self._since) / _POLL_FRACTION), _LONGEST_POLL_S)
            self._poll(members)

    def _tell(self, record: Record | None, number: int = 0) -> None:
        if (record, number) != (self._record, 0):
            text = "" if record is None else f"{self._identities[self._rank]} {number} {_text(record)}"
            self._store.set(f"blocked/{self._rank}", text)
            self._store.add("blocked", 1)
        self._record = record

    def _poll(self, members: list[Member]) -> None:
        if self._record is not None:
            told = _Decision.read(self._store, self._identities[0])
            if self._rank in told.ranks:
                self._follow(told, members)
        if self._judge is not None:
            self._judge.poll()

    def _follow(self, told: _Decision, members: list[Member]) -> None:
        if told.text:
            if self._judge is not None:
                time.sleep(_FOR_OTHERS_S)
            self._end(told.text, members)
        elif told.number != self._answered and _snapshot(members, dict(self._seen)) == self._record:
            self._answered = told.number
            self._tell(self._record, told.number)

    def _end(self, text: str, members: list[Member]) -> None:
        assert self._record is not None
        waited_for = {call.group for calls in self._record.threads for call in calls}
        self._record, self.text = None, text
        for member in members:
            if _name(member) in waited_for:
                member.fail()

    def decided(self) -> str:
        """The decision that ends this process, even if the end of another one was faster."""
        if not self.text and self._record is not None:
            told = _Decision.read(self._store, self._identities[0])
            self.text = told.text if self._rank in told.ranks else ""
        return self.text


class _Judge:
    """Rank 0 of the default group."""

    def __init__(self, store: Any, identities: list[str]) -> None:
        self._store, self._identities = store, identities
        self._count = 0  # of what was told, when it was read last
        self._number = 0
        self._asked: dict[int, Record] = {}
        self._until = 0.0

    def poll(self) -> None:
        count = self._store.add("blocked", 0)
        if self._asked:
            self._hear()
        elif count != self._count:
            self._count = count
            told = {rank: self._told(rank).record for rank in range(len(self._identities))}
            blocked = {rank: record for rank, record in told.items() if record is not None}
            self._ask(blocked, deadlocked(blocked))

    def _told(self, rank: int) -> _Told:
        return _Told.read(self._store, rank, self._identities[rank])

    def _ask(self, records: Mapping[int, Record], ranks: set[int]) -> None:
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
        if ranks := deadlocked(still):
            self._say(ranks, _sentence(still, ranks))

    def _say(self, ranks: set[int], text: str) -> None:
        told = _Decision(self._identities[0], self._number, sorted(ranks), text)
        self._store.set("decision", json.dumps(told))


def _name(member: Member) -> str:
    """The same in all of its processes, and of no other group; "": its ranks have not met."""
    return (member.meeting.identities or [""])[0]


def _snapshot(members: list[Member], progress: Mapping[str, Progress]) -> Record | None:
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
    return Record(parts, calls, where)


def _call(member: Member, source: int, progress: Mapping[str, Progress]) -> Call:
    own = progress[_name(member)]
    over = own.over if source < 0 else own.messages.get(source, (0, 0))[1]
    return Call(_name(member), over, source)


def _part(member: Member, own: Progress) -> Part:
    return Part(member.meeting.rank, own.posted, {rank: sent for rank, (sent, _) in own.messages.items() if sent})


class Watch:
    """Looks at this process on a thread of its own, as long as it has two groups or more."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._members: dict[int, Member] = {}
        self._thread: threading.Thread | None = None
        self._over: SimpleQueue[None] = SimpleQueue()  # a signal handler may end a group at any point
        self._part: _Part | None = None

    def add(self, member: Member) -> None:
        self._members[id(member)] = member
        if len(self._members) > 1 and (self._thread is None or not self._thread.is_alive()):
            self._over = SimpleQueue()
            self._thread = threading.Thread(target=self._run, args=(self._over,), name="bagua_net watch", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can start: a group's timeout will tell
                self._thread = None

    def remove(self, member: Member) -> None:
        """Repeated calls do nothing."""
        self._members.pop(id(member), None)
        if not self._members:
            self._end()

    def _end(self) -> None:
        self._part, thread, self._thread = None, self._thread, None
        self._over.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

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
        if identities is not None and (self._part is None or self._part.world is not world):
            self._part = _Part(world, identities)
        if self._part is not None and self._part.world is world:
            self._part.look(members)

    def decided(self) -> str:
        """See :class:`Reasons`. Raises RuntimeError: the store cannot be reached."""
        part = self._part
        return "" if part is None else part.decided()

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


def decided() -> str:
    """Why this process's operations were ended; "": they were not, or nobody can tell."""
    try:
        return watch.decided()
    except RuntimeError:
        return ""
