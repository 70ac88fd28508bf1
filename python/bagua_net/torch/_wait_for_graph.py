# SPDX-License-Identifier: MIT
"""Who waits for whom, of processes that are blocked.

One in a collective waits for every rank that has not called it, which its count of calls shows; one in a receive for
the sender, if all that this has sent has arrived. So a slow network is never taken for a deadlock, nor is a rank that
computes or saves. Such a wait ends only by an act of the other process, and a process that is blocked acts no more
unless one of its waits ends. Therefore those that remain when all are taken away, again and again, that have a thread
which waits for none of the remaining, wait for ever (the standard reduction of a wait-for graph: Holt, Computing
Surveys 4(3), 1972).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

#: Calls that an error names, and ranks of each.
_NAMED = 4


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


def in_vain(records: Mapping[int, Record], ranks: set[int]) -> list[Call]:
    """The collectives that processes which wait for each other will never finish."""
    return [
        call
        for process in ranks
        for calls in records[process].threads
        for call in calls
        if call.source < 0 and _is_held(records, process, [call], ranks)
    ]


def _waits_for(theirs: Mapping[str, Part], call: Call, own: Mapping[str, Part]) -> bool:
    part = theirs.get(call.group)
    if part is None or call.group not in own:
        return False
    if call.source < 0:
        return part.posted <= call.over
    return part.rank == call.source and part.sent.get(own[call.group].rank, 0) <= call.over


def text_of(record: Record) -> str:
    return json.dumps([{group: list(part) for group, part in record.parts.items()}, record.threads, record.where])


def parsed(text: str) -> Record:
    parts, threads, where = json.loads(text)
    read = {
        group: Part(rank, posted, {int(peer): count for peer, count in sent.items()})
        for group, (rank, posted, sent) in parts.items()
    }
    return Record(read, [[Call(*call) for call in calls] for calls in threads], where)


def sentence(records: Mapping[int, Record], ranks: Iterable[int]) -> str:
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
