# SPDX-License-Identifier: MIT
"""Something that happens between two steps of a function: on another thread, or in a signal handler.

The interpreter lets another thread run, or a handler, when it enters a function, after a call, and when it jumps back.
So a function is called over and over, and it happens at the first of these points, at the second, and so on.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, NamedTuple

_LOOKS = [
    name.startswith(("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "POP_JUMP_BACKWARD")) for name in dis.opname
]

Act = Callable[[], None]


class Case(NamedTuple):
    """Made anew for each point."""

    function: Act
    meanwhile: Act
    check: Act


def at_each_step(modules: list[ModuleType], case: Callable[[], Case], *, in_handler: bool = False) -> int:
    """Returns the number of points in these modules' functions.

    Args:
        in_handler: ``meanwhile`` interrupts the function on its own thread. Otherwise it runs on another one, and has
            ended when the function goes on.
    """
    at = 0
    while True:
        function, meanwhile, check = case()
        steps = _Steps(at + 1, modules, meanwhile if in_handler else _elsewhere(meanwhile))
        steps.trace(function)
        if not steps.reached:
            return at
        check()
        at += 1


def _elsewhere(act: Act) -> Act:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    def wait() -> None:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return wait


class _Steps:
    def __init__(self, at: int, modules: list[ModuleType], act: Act) -> None:
        self.reached = False
        self._left = at
        self._files = {each.__file__ for each in modules}
        self._act = act
        self._looks: dict[FrameType, bool] = {}  # was its last instruction, or its beginning, such a point?

    def trace(self, function: Act) -> None:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 and later ask for it before tracing begins
        sys.settrace(self._enter)
        try:
            function()
        finally:
            sys.settrace(before)
            self._looks.clear()  # frames keep what they work with

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace = self._step
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            looked = self._looks.get(frame, True)
            self._looks[frame] = _LOOKS[frame.f_code.co_code[frame.f_lasti]]
            if looked and not self.reached:
                self._left -= 1
                if self._left == 0:
                    self.reached = True
                    self._act()
        return self._step
