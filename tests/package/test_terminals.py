# SPDX-License-Identifier: MIT
"""What commands do to a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.package import bench_command
from tests.package.running_jobs import SECONDS, job

_DOCTOR_SAYS = """
from bagua_net._cli.doctor import _say
_say("one host and another")
_say("")
"""
#: What `nohup` does before it starts a command, which here starts another one that it becomes.
_WITHOUT_HANGING_UP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
command = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)"
ours = [sys.executable, "-m", "bagua_net", "run", "--", sys.executable, "-c", command]
os.execv(sys.executable, ours)
"""


class _Terminal:
    """Of a program, whose standard output and error it is."""

    def __init__(self, directory: Path, arguments: list[str], term: str) -> None:
        self.seen = ""
        self._controller, terminal = pty.openpty()
        self.process = subprocess.Popen(
            ["env", "--default-signal=HUP", sys.executable, *arguments],  # `nohup pytest` leaves it ignored
            env=bench_command.environment(BAGUA_NET_STATS_DIR=str(directory), COLUMNS="80", TERM=term),
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def until(self, holds: Callable[[str], bool]) -> None:
        """Reads until this holds for all that was read, or the program has ended."""
        with contextlib.suppress(OSError):  # EIO: nobody has the other side any more
            while not holds(self.seen):
                self.seen += os.read(self._controller, 65536).decode()

    def end(self) -> int:
        """What it writes until it ends is read. Its exit status."""
        try:
            self.until(lambda _: False)
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            os.close(self._controller)


def test_a_terminal_that_cannot_draw_gets_one_table(tmp_path: Path) -> None:
    with job(tmp_path):
        terminal = _Terminal(tmp_path, ["-m", "bagua_net", "top", "--interval", "0.6"], "dumb")
        assert terminal.end() == 0
    assert terminal.seen.startswith("PID ")
    assert "127.0.0.1" in terminal.seen
    assert "\x1b" not in terminal.seen


@pytest.mark.parametrize(
    ("term", "seen"),
    [("dumb", "one host and another …\r\n"), ("xterm", "\r\x1b[Kone host and another …\r\x1b[K")],
)
def test_what_the_doctor_looks_at(tmp_path: Path, term: str, seen: str) -> None:
    terminal = _Terminal(tmp_path, ["-c", _DOCTOR_SAYS], term)
    assert terminal.end() == 0
    assert terminal.seen == seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_left_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    """Its own screen, with a cursor."""
    with job(tmp_path):
        terminal = _Terminal(tmp_path, ["-m", "bagua_net", "top", "--interval", "0.6"], "xterm")
        terminal.until(lambda seen: "127.0.0.1" in seen)
        assert "\x1b[?1049h" in terminal.seen
        assert "\x1b[?25l" in terminal.seen
        terminal.seen = ""
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
    assert "\x1b[?1049l" in terminal.seen
    assert "\x1b[?25h" in terminal.seen


def test_who_ignores_a_signal_has_it_ignored(tmp_path: Path) -> None:
    terminal = _Terminal(tmp_path, ["-c", _WITHOUT_HANGING_UP], "dumb")
    assert terminal.end() == 0
    assert terminal.seen == "SIG_IGN SIG_DFL\r\n"
