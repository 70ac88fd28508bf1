# SPDX-License-Identifier: MIT
"""What tests of the backend look for, or put, inside it. No public interface shows it, so a name inside that changes
changes here.

- Moments that a test must hit: a thread waits in the library, or for a key in the store.
- What happens at one point of an operation: before a thread returns, after a thread has started.
- Works that are over, which a group forgets in time, and here at once.
"""

from __future__ import annotations

import contextlib
import linecache
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bagua_net.torch import _blocked, _meeting, _messages, _rendezvous, _request, _work


def _stack(thread: int | None) -> Iterator[Any]:
    frame = _blocked.frames_of_all().get(thread or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


# ---- moments ----


def runs_in_the_library(thread: int) -> bool:
    """Is it in the library's call that runs a collective?"""
    frame = next(_stack(thread))
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return frame.f_code.co_name == "_run_here" and "bnet_queue_run" in line


def waits_for_an_operation(thread: int) -> bool:
    """Is it in a wait for the end of an operation that was posted before?"""
    frame = next(_stack(thread), None)  # the others change while the thread runs
    return frame is not None and frame.f_code is _request.Request.wait.__code__


def waits_in_the_store(thread: threading.Thread, for_what: str = "") -> bool:
    """Does it wait for what another rank writes into torch's store, in a function of that name?"""
    names = [frame.f_code.co_name for frame in _stack(thread.ident)]
    return "becomes" in names and (not for_what or for_what in names)


def await_meeting(group: Any) -> None:
    """Until this rank knows that all have made the group."""
    while group._meeting.identities is None:
        time.sleep(0.001)


# ---- what happens at one point ----


def after_the_start_of_messages(group: Any, act: Callable[[], None]) -> None:
    """Acts when the thread of its messages has just started, and nothing is posted yet."""
    start = group._messages._start

    def start_and_act() -> Any:
        started = start()
        act()
        return started

    group._messages._start = start_and_act


@contextlib.contextmanager
def after_each_row(act: Callable[[], None]) -> Iterator[None]:
    """Acts whenever a group that is made has published a row of its addresses."""
    kind: Any = _rendezvous.Rendezvous
    publish = kind.publish

    def publish_and_act(*arguments: Any) -> None:
        publish(*arguments)
        act()

    kind.publish = publish_and_act
    try:
        yield
    finally:
        kind.publish = publish


@contextlib.contextmanager
def ranks_meet_at_the_deadline() -> Iterator[threading.Event]:
    """Every wait for the other ranks is in vain, and they have met when somebody asks who is missing. Yields an event:
    somebody has asked."""
    asked = threading.Event()
    kind: Any = _meeting.Meeting
    wait, missing = kind.wait, kind.missing

    def missing_after_the_meeting(meeting: Any) -> Any:
        asked.set()
        while meeting.identities is None:
            time.sleep(0.001)
        return missing(meeting)

    kind.wait, kind.missing = lambda *_: False, missing_after_the_meeting
    try:
        yield asked
    finally:
        kind.wait, kind.missing = wait, missing


@contextlib.contextmanager
def no_rendezvous(error: Exception) -> Iterator[None]:
    """Whoever looks for the other ranks' rows gets this exception."""
    kind: Any = _rendezvous.Rendezvous
    collect = kind.collect

    def fail(*_: Any) -> None:
        raise error

    kind.collect = fail
    try:
        yield
    finally:
        kind.collect = collect


@contextlib.contextmanager
def before_reports(act: Callable[[], None]) -> Iterator[None]:
    """Acts whenever a thread looks whether an operation is over whose future it will fulfil."""
    kind: Any = _work.Work
    report = kind.report

    def act_and_report(work: Any) -> bool:
        act()
        return bool(report(work))

    kind.report = act_and_report
    try:
        yield
    finally:
        kind.report = report


@contextlib.contextmanager
def sends_are_given_up_after(seconds: float) -> Iterator[None]:
    """A group that ends waits so long for sends that do not move."""
    before, _messages.GIVE_UP_S = _messages.GIVE_UP_S, seconds
    try:
        yield
    finally:
        _messages.GIVE_UP_S = before


# ---- works ----


def forget_ended(group: Any) -> None:
    """All that are over. Returns when none is in progress."""
    while group._in_flight._works:
        group._in_flight.settle()
