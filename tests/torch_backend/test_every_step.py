# SPDX-License-Identifier: MIT
"""Ctrl-C at every step of the package's Python: afterwards a group works, or says that it has ended.

The interpreter looks for signals when it enters a function, after a call, and when it jumps back. So an operation is
done over and over, and a signal arrives before the first of these instructions, before the second, and so on. It is a
signal of the system, not an exception of the trace function: that one would come where no handler ever runs.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import bagua_net.torch
from tests.support.ranks import Ranks

pytestmark = pytest.mark.nightly

if TYPE_CHECKING:
    from tests.support.rank import Here

_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)
_PACKAGE = str(Path(bagua_net.torch.__file__).parent)
#: Seconds after which an operation hangs: less than a turn that nobody leaves, and more than a busy machine needs.
_HANGS_S = 8.0
#: The length of an operation varies: so many must have ended before their signal.
_UNHURT = 3


class _Signal(int):
    """Its number. To read ``arrives`` makes it pending, and runs no Python, where it would be handled."""

    arrives = property(_thread.interrupt_main)


_CTRL_C = _Signal(signal.SIGINT)
_LOOKS = [name == "RESUME" or "CALL" in name or "JUMP" in name for name in dis.opname]


class _Steps:
    """Lets a signal arrive at one step."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.where = ""
        self._ignored = False  # Python lets no exception out of __del__

    def interrupts(self, operation: Callable[[], None]) -> bool:
        """Does it, as far as the signal lets it. False: there was none."""
        sys.unraisablehook = self._ignore
        sys.settrace(self._enter)
        try:
            operation()
            sys.settrace(None)
            for _ in range(3):  # it may have come at the very end
                pass
        except KeyboardInterrupt:
            assert self.where
            return True
        finally:
            sys.settrace(None)
            sys.unraisablehook = sys.__unraisablehook__
        assert not self.where or self._ignored, f"the signal before {self.where} was lost"
        return bool(self.where)

    def _ignore(self, unraisable: Any) -> None:
        assert unraisable.exc_type is KeyboardInterrupt
        self._ignored = True

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and _LOOKS[frame.f_code.co_code[frame.f_lasti]]:
            self._left -= 1
            if self._left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                return _CTRL_C.arrives
        return self._step


def _each_step(operation: Callable[[], None], then: Callable[[str], None]) -> int:
    """How often it was interrupted. ``then`` is told where, and "" where it was not."""
    at, unhurt = 0, 0
    while unhurt < _UNHURT:
        at += 1
        steps = _Steps(at)
        began = time.monotonic()
        unhurt = 0 if steps.interrupts(operation) else unhurt + 1
        then(steps.where)
        assert time.monotonic() - began < _HANGS_S, f"it hung after a signal before {steps.where}"
    return at - unhurt


# ---- what both ranks do ----


def _group() -> Any:
    return dist.new_group(timeout=timedelta(seconds=_HANGS_S))


_Operation = Callable[[Any, torch.Tensor], None]


class _Pair:
    """Rank 1 takes part in one operation after the other, and gives each a number. Rank 0 sees these."""

    def __init__(self, here: Here, *, afresh: bool = False) -> None:
        """``afresh``: each operation is the first of its group."""
        self._here = here
        self._afresh = afresh
        self.group = _group()
        self._made = 1
        self._last = 0

    def each_step(self, operation: _Operation) -> int:
        """How often rank 0 was interrupted."""
        tensor = torch.empty(0)

        def once() -> None:
            nonlocal tensor
            tensor = torch.zeros(4)[::2]  # not contiguous; one that was interrupted may yet write to its own
            operation(self.group, tensor)

        def check(where: str) -> None:
            try:
                if where:
                    once()
                self._check(int(tensor[0]), where)
                if self._afresh:
                    self._replace()
            except RuntimeError:  # a DistBackendError as well: the group has ended
                assert where
                self._replace()

        return _each_step(once, check)

    def _check(self, number: int, where: str) -> None:
        """The next operations have the next numbers, but for the one that was interrupted."""
        assert number in (self._last + 1, self._last + (2 if where else 1)), f"{number} after {self._last}: {where}"
        self._last = number

    def each_step_of_the_end(self) -> int:
        """The same for the end of a group. A second attempt ends it, whatever has become of the first."""

        def check(where: str) -> None:
            if where:
                with contextlib.suppress(ValueError):  # torch does not know it any more
                    dist.destroy_process_group(self.group)
            self._replace()

        return _each_step(lambda: dist.destroy_process_group(self.group), check)

    def _replace(self) -> None:
        self._leave("again")
        self._begin()

    def _begin(self) -> None:
        self.group = _group()
        self._made += 1
        self._last = 0

    def _leave(self, then: str) -> None:
        self._here.board.set(f"after {self._made}", then)
        self._end()

    def _end(self) -> None:
        self.group.abort()
        with contextlib.suppress(ValueError):
            dist.destroy_process_group(self.group)

    def end(self) -> None:
        self._leave("nothing")

    def serve(self, operation: _Operation) -> None:
        """Rank 1's part: it does not know when a group ends."""
        while True:
            try:
                for number in range(1, 10**9):
                    operation(self.group, torch.full((2,), float(number)))
            except RuntimeError:  # a DistBackendError as well
                self._end()
            if self._here.board.get(f"after {self._made}") == b"nothing":
                return
            self._begin()


def _wait(work: Any) -> None:
    """A wait that was interrupted may be repeated."""
    try:
        work.wait()
    except KeyboardInterrupt:
        work.wait()
        raise


def _sum(group: Any, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, group=group)


def _later_sum(group: Any, tensor: torch.Tensor) -> None:
    _wait(dist.all_reduce(tensor, group=group, async_op=True))


def _told_sum(group: Any, tensor: torch.Tensor) -> None:
    told: list[float] = []
    work = dist.all_reduce(tensor, group=group, async_op=True)
    try:
        future = work.get_future()
    except KeyboardInterrupt:
        work.get_future().wait()
        raise
    _wait(future.then(lambda future: told.append(float(future.value()[0][0]))))
    assert told == [float(tensor[0])]


def _receive(group: Any, tensor: torch.Tensor) -> None:
    dist.recv(tensor, 1, group=group)


def _send(group: Any, tensor: torch.Tensor) -> None:
    dist.send(tensor, 0, group=group)


def _exchange(group: Any, tensor: torch.Tensor) -> None:
    sends = dist.isend(torch.zeros(2), 1, group=group)
    _wait(dist.irecv(tensor, 1, group=group))
    _wait(sends)


def _answer(group: Any, tensor: torch.Tensor) -> None:
    dist.recv(torch.zeros(2), 0, group=group)
    dist.send(tensor, 0, group=group)


#: Of rank 0, and of rank 1.
_OPERATIONS = {
    "a sum": (_sum, _sum),
    "a sum that is waited for": (_later_sum, _sum),
    "a sum that is told": (_told_sum, _sum),
    "a receive": (_receive, _send),
    "an exchange": (_exchange, _answer),
}


# ---- what is left ----


def _threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if "group" in thread.name)


def _descriptors() -> list[str]:
    kinds = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the directory
            kinds.append(str(link.readlink()).split(":")[0])
    return sorted(kinds)


class _Left:
    """What the groups made since then have left behind. Sockets of an earlier group may still be closing at first."""

    def __init__(self) -> None:
        gc.collect()
        self._before = self._found()

    @staticmethod
    def _found() -> Counter[str]:
        return Counter(_threads() + _descriptors())

    def check(self) -> None:
        gc.collect()
        deadline = time.monotonic() + _HANGS_S
        while (left := self._found() - self._before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left


def _stepping(here: Here, mine: Callable[[_Pair], int], theirs: _Operation, *, afresh: bool = False) -> int:
    """How often rank 0 was interrupted. Nothing is left behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warm = _group()
    _sum(warm, torch.zeros(1))
    (_receive if here.rank == 0 else _send)(warm, torch.zeros(1))
    dist.destroy_process_group(warm)
    del warm
    left, pair, interrupted = _Left(), _Pair(here, afresh=afresh), 0
    if here.rank == 0:
        try:
            interrupted = mine(pair)
        finally:
            pair.end()
    else:
        pair.serve(theirs)
    del pair
    left.check()
    return interrupted


def in_use(here: Here, what: str, afresh: bool) -> int:
    mine, theirs = _OPERATIONS[what]
    return _stepping(here, lambda pair: pair.each_step(mine), theirs, afresh=afresh)


@pytest.mark.parametrize("what", _OPERATIONS)
@_TWO
def test_an_operation(ranks: Ranks, what: str) -> None:
    assert ranks.run(in_use, what, False)[0] > 20


@pytest.mark.parametrize("what", ["a sum", "a sum that is told", "an exchange"])
@_TWO
def test_the_first_operation_of_a_group(ranks: Ranks, what: str) -> None:
    assert ranks.run(in_use, what, True)[0] > 40


def ended(here: Here) -> int:
    return _stepping(here, _Pair.each_step_of_the_end, _sum)


@_TWO
def test_the_end_of_a_group(ranks: Ranks) -> None:
    assert ranks.run(ended)[0] > 20
