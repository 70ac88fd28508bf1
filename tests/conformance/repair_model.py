# SPDX-License-Identifier: MIT
"""A model of the repair of streams (docs/dev/architecture.md), small enough to be explored whole.

A sender cuts messages into slices of a header and a payload, one unit each, and writes them on its streams. A unit is
in the network, then in the receiver's kernel, which acknowledges it, then it is taken out. Streams are reset on either
side at any time, so often as the case allows; the other side may not hear of it. :func:`explore` visits every order of
events and says what goes wrong in any:

- a payload is written into a message that is complete (its buffer may be in use for another one),
- bytes are sent again out of a request that is done,
- the receiver's position lies before what was released,
- from some state on the end, everything arrived and every request done, cannot be reached.

The names are those of the code: plugin/transport/ledger.h, rx.c, tx.c, and plugin/control/repair.c.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace


class Violation(AssertionError):
    """Something that must never happen; the text has the events that lead there."""


@dataclass(frozen=True)
class Row:
    """A slice that was written, wholly or in part."""

    slice: int
    end: int | None  # units of the stream until then; None: not written whole
    kept: bool  # in a copy: its request need not wait


@dataclass(frozen=True)
class Stream:
    """Both ends of it."""

    serial: int
    sent: tuple[int, ...] = ()  # of each unit, its slice
    arrived: int = 0  # units in the receiver's kernel so far, and
    taken: int = 0  # those taken out
    heard: bool = False  # the sender's socket was reset
    shut: bool = False  # the receiver's was
    # the sender's
    out: Row | None = None  # under way: its header was written
    ledger: tuple[Row, ...] = ()
    released: int = 0
    again: tuple[Row, ...] = ()  # of the stream whose place it took
    # the receiver's
    placed: int | None = None  # the payload that comes next has a place
    skips: bool = False  # … or is skipped
    limit: int | None = None


@dataclass(frozen=True)
class Repair:
    """A stream that was taken out, and the one that is to take its place."""

    serial: int
    rows: tuple[Row, ...]
    written: int
    released: int
    dialed: int = 0  # the serial of the one whose HELLO has arrived; 0: none
    position: int = 0  # … and the answer to it


@dataclass(frozen=True)
class State:
    streams: tuple[Stream, ...]
    gone: tuple[Stream, ...] = ()  # those that only the receiver still has
    repairs: tuple[Repair, ...] = ()
    serial: int = 0
    claimed: int = 0
    done: frozenset[int] = frozenset()  # slices whose requests need them no more
    posted: int = 0
    placed: frozenset[int] = frozenset()
    arrived: frozenset[int] = frozenset()
    resets: int = 0


@dataclass(frozen=True)
class Case:
    """What is explored, and what of the protocol is left out."""

    messages: tuple[int, ...]  # slices of each
    streams: int = 1
    resets: int = 1
    keeps: bool = True  # a send that is done before its bytes are acknowledged has left them in a copy
    takes_back: bool = True  # a slice that was cut off loses its place in its message
    drains: bool = True  # the position counts what is in the receiver's kernel, not only what was taken
    alone: bool = True  # what is sent again is on a stream of its own

    @property
    def slices(self) -> int:
        return sum(self.messages)

    def message(self, number: int) -> int:
        """Of a slice."""
        for message, count in enumerate(self.messages):
            if number < count:
                return message
            number -= count
        raise ValueError("no such slice")

    def siblings(self, number: int) -> list[int]:
        """The slices of its message."""
        return [each for each in range(self.slices) if self.message(each) == self.message(number)]


Event = tuple[str, State]


class Model:
    def __init__(self, case: Case) -> None:
        self._case = case

    def start(self) -> State:
        count = self._case.streams
        return State(tuple(Stream(serial) for serial in range(1, count + 1)), serial=count, resets=self._case.resets)

    def is_end(self, state: State) -> bool:
        everything = set(range(self._case.slices))
        return state.arrived == everything and state.done == everything and not state.repairs

    def events(self, state: State) -> Iterator[Event]:
        for number, stream in enumerate(state.streams):
            yield from self._sender(state, number, stream)
            yield from self._kernel(state, number, stream)
            for name, after, changed in self._receiver(state, stream):
                yield name, _with(after, number, changed)
        for number, stream in enumerate(state.gone):
            for name, after, changed in self._receiver(state, stream):
                gone = (*after.gone[:number], changed, *after.gone[number + 1 :])
                yield name, replace(after, gone=gone)
        for number in range(len(state.repairs)):
            yield from self._repair(state, number)
        if state.posted < len(self._case.messages) and self._may_post(state):
            yield "post", replace(state, posted=state.posted + 1)

    def _may_post(self, state: State) -> bool:
        """One receive is outstanding at a time."""
        return state.posted == 0 or state.arrived.issuperset(
            each for each in range(self._case.slices) if self._case.message(each) < state.posted
        )

    # ---- the sender ----

    def _sender(self, state: State, number: int, stream: Stream) -> Iterator[Event]:
        if stream.heard:
            yield f"take out {stream.serial}", self._take_out(state, number, stream)
            return
        if stream.out:
            yield from self._finish(state, number, stream, stream.out)
        elif stream.again:
            row = stream.again[0]
            if not row.kept and row.slice in state.done:
                raise Violation("sent again out of a request that is done")
            begun = replace(stream, out=replace(row, end=None), again=stream.again[1:], sent=(*stream.sent, row.slice))
            yield f"again {row.slice} on {stream.serial}", _with(state, number, begun)
        elif state.claimed < self._case.slices:
            begun = replace(stream, out=Row(state.claimed, None, False), sent=(*stream.sent, state.claimed))
            claimed = replace(state, claimed=state.claimed + 1)
            yield f"claim {state.claimed} on {stream.serial}", _with(claimed, number, begun)

    def _finish(self, state: State, number: int, stream: Stream, row: Row) -> Iterator[Event]:
        sent = (*stream.sent, row.slice)
        for early in {row.kept, True}:
            written = replace(row, end=len(sent), kept=row.kept or (early and self._case.keeps))
            after = replace(stream, sent=sent, out=None, ledger=(*stream.ledger, written))
            done = state.done | {row.slice} if early else state.done
            yield f"write {row.slice} on {stream.serial}", _with(replace(state, done=done), number, after)

    def _take_out(self, state: State, number: int, stream: Stream) -> State:
        rows = (*stream.ledger, *([stream.out] if stream.out else []), *stream.again)
        repair = Repair(stream.serial, tuple(rows), len(stream.sent), stream.released)
        rest = (*state.streams[:number], *state.streams[number + 1 :])
        left = replace(stream, ledger=(), out=None, again=())
        return replace(state, streams=rest, gone=(*state.gone, left), repairs=(*state.repairs, repair))

    # ---- the network, and both kernels ----

    def _kernel(self, state: State, number: int, stream: Stream) -> Iterator[Event]:
        if stream.arrived < len(stream.sent) and not stream.shut:
            yield f"arrive on {stream.serial}", _with(state, number, replace(stream, arrived=stream.arrived + 1))
        if stream.arrived < len(stream.sent) and stream.shut and not stream.heard:
            yield f"hear on {stream.serial}", _with(state, number, replace(stream, heard=True))
        if stream.ledger and not stream.heard and (stream.ledger[0].end or 0) <= stream.arrived:
            row, *rest = stream.ledger
            released = replace(stream, ledger=tuple(rest), released=row.end or 0)
            yield f"release {row.slice}", _with(replace(state, done=state.done | {row.slice}), number, released)
        if state.resets and not stream.heard:
            fewer = replace(state, resets=state.resets - 1)
            yield f"reset {stream.serial} at the sender", _with(fewer, number, replace(stream, heard=True))
        if state.resets and not stream.shut:
            fewer = replace(state, resets=state.resets - 1)
            yield f"reset {stream.serial} at the receiver", _with(fewer, number, replace(stream, shut=True))

    # ---- the receiver ----

    def _receiver(self, state: State, stream: Stream) -> Iterator[tuple[str, State, Stream]]:
        end = stream.arrived if stream.limit is None else stream.limit
        if stream.taken >= end:
            return
        number = stream.sent[stream.taken]
        name = f"read {number} on {stream.serial}"
        after = replace(stream, taken=stream.taken + 1, placed=None, skips=False)
        if stream.placed is not None:
            siblings = self._case.siblings(number)
            if all(each in state.arrived for each in siblings):
                raise Violation("written into a message that is complete")
            yield name, replace(state, arrived=state.arrived | {number}), after
        elif stream.skips:
            yield name, state, after
        elif stream.limit is not None and stream.taken + 2 > stream.limit:
            yield name, state, replace(after, skips=True)  # cut off
        elif self._case.message(number) < state.posted:
            if number in state.placed:
                yield name, state, replace(after, skips=True)
            else:
                yield name, replace(state, placed=state.placed | {number}), replace(after, placed=number)

    # ---- a repair ----

    def _repair(self, state: State, number: int) -> Iterator[Event]:
        repair = state.repairs[number]
        if not repair.dialed:
            yield f"HELLO for {repair.serial}", self._hello(state, number, repair)
            return
        yield f"WELCOME for {repair.serial}", self._welcome(state, number, repair)
        if state.resets:
            lost = replace(state, resets=state.resets - 1)
            yield f"no WELCOME for {repair.serial}", _with_repair(lost, number, replace(repair, dialed=0))

    def _hello(self, state: State, number: int, repair: Repair) -> State:
        index = next((i for i, stream in enumerate(state.gone) if stream.serial == repair.serial), None)
        assert index is not None
        old = state.gone[index]
        placed = state.placed
        if old.limit is None:
            old, placed = self._end_with_what_is_there(old, placed)
        gone = (*state.gone[:index], old, *state.gone[index + 1 :])
        asked = replace(repair, dialed=state.serial + 1, position=old.limit or 0)
        return _with_repair(replace(state, gone=gone, placed=placed, serial=state.serial + 1), number, asked)

    def _end_with_what_is_there(self, old: Stream, placed: frozenset[int]) -> tuple[Stream, frozenset[int]]:
        limit = old.arrived if self._case.drains else old.taken
        cut_off = old.placed is not None and old.taken >= limit
        if cut_off and self._case.takes_back:
            return replace(old, limit=limit, placed=None, skips=True), placed - {old.placed or 0}
        return replace(old, limit=limit), placed

    def _welcome(self, state: State, number: int, repair: Repair) -> State:
        if repair.position < repair.released or repair.position > repair.written:
            raise Violation("a position that cannot be")
        arrived = [row for row in repair.rows if row.end is not None and row.end <= repair.position]
        rest = tuple(row for row in repair.rows if row not in arrived)
        done = state.done | {row.slice for row in arrived}
        repairs = (*state.repairs[:number], *state.repairs[number + 1 :])
        after = replace(state, repairs=repairs, done=done)
        if self._case.alone or not after.streams:
            joined = Stream(repair.dialed, again=rest)
            return replace(after, streams=tuple(sorted((*after.streams, joined), key=lambda each: each.serial)))
        first = after.streams[0]
        return _with(after, 0, replace(first, again=(*first.again, *rest)))


def _with(state: State, number: int, stream: Stream) -> State:
    return replace(state, streams=(*state.streams[:number], stream, *state.streams[number + 1 :]))


def _with_repair(state: State, number: int, repair: Repair) -> State:
    return replace(state, repairs=(*state.repairs[:number], repair, *state.repairs[number + 1 :]))


def _without_read(state: State) -> State:
    """Streams that the receiver has read to their ends, and nobody asks about, make no difference any more."""
    asked = {repair.serial for repair in state.repairs}
    gone = tuple(each for each in state.gone if each.serial in asked or each.limit is None or each.taken < each.limit)
    return replace(state, gone=gone) if len(gone) < len(state.gone) else state


def explore(case: Case) -> int:
    """Returns the number of states.

    Raises:
        Violation: something goes wrong in one of them.
    """
    model = Model(case)
    start = model.start()
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {start: []}
    waiting = deque([start])
    ends = []
    while waiting:
        state = waiting.popleft()
        if model.is_end(state):
            ends.append(state)
        try:
            for name, after in model.events(state):
                after = _without_read(after)
                if after not in came:
                    came[after] = (state, name)
                    before[after] = []
                    waiting.append(after)
                before[after].append(state)
        except Violation as violation:
            raise Violation(f"{violation}: {_path(came, state)}") from None
    _check_that_all_reach(ends, before, came)
    return len(came)


def _check_that_all_reach(
    ends: list[State], before: dict[State, list[State]], came: dict[State, tuple[State, str] | None]
) -> None:
    reached = set(ends)
    waiting = deque(ends)
    while waiting:
        for each in before[waiting.popleft()]:
            if each not in reached:
                reached.add(each)
                waiting.append(each)
    for state in came:  # in the order of their distance from the start
        if state not in reached:
            raise Violation(f"waits for ever: {_path(came, state)}")


def _path(came: dict[State, tuple[State, str] | None], state: State) -> str:
    names: list[str] = []
    step = came[state]
    while step:
        names.append(step[1])
        step = came[step[0]]
    return ", ".join(reversed(names))
