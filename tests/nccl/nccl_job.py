# SPDX-License-Identifier: MIT
"""Jobs of real NCCL on emulated GPUs: each rank is a process, on this machine.

    with nccl_job.start("a_rank", 3, "2.30.7", "bagua", tmp_path) as job:   # python -m tests.nccl.a_rank, three times
        assert job.ask({"step": "sum"}) == [6, 6, 6]                        # a reply from each rank
        job.finish()                                                        # all end, with status 0

The program is a module of this directory; its side of the conversation is :mod:`nccl_rank`. Tasks and replies are JSON
values. The ranks end with this process, and with the block. :class:`JobFailed` has what the ranks wrote, NCCL's log and
the stacks of those that were still running.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import bagua_net
from bagua_net._native.plugin import NETWORK_NAME, plugin_path
from bagua_net._nccl import net_plugin
from tests.nccl.nccl_rank import Seat
from tests.support import nccl_wheels, programs

#: The networks of a job: the plugin, and NCCL's own as a control. If that is wrong, so is the emulation.
BAGUA, SOCKET = "bagua", "socket"
NETWORKS = (BAGUA, SOCKET)
#: No network for all: a communicator chooses, as with activate(per_communicator=True).
CHOSEN = "chosen"
#: By the network, as NCCL's log has it.
NAMES = {BAGUA: NETWORK_NAME, SOCKET: "Socket"}

#: Seconds for a reply, and for a rank to end. Generous: the machine may be busy.
_SECONDS = 300.0
_EXIT_SECONDS = 60.0
#: Of each rank, in a failure's text.
_STDERR_BYTES = 5000
_LOG_LINES = 30
_DROPPED = ("NCCL_", "BAGUA_NET_")
_DEFAULTS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
}


class JobFailed(AssertionError):
    """A rank failed, or did not reply in time."""


@dataclass
class _Rank:
    popen: subprocess.Popen[bytes]
    replies: int
    stderr: Path
    log: Path
    unread: bytes = b""
    waiting: deque[Any] = field(default_factory=deque)
    expected: int = 0
    """The status with which it may end; not 0 for a rank that :meth:`Job.kill` ended."""

    def tell(self, kind: str, value: Any) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; that is noticed where a reply is awaited
            self.popen.stdin.write(json.dumps([kind, value]).encode() + b"\n")
            self.popen.stdin.flush()

    def text(self) -> str:
        """What it wrote, and the end of NCCL's log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        lines = [line for line in lines if not line.endswith("|")]  # tables of what NCCL may choose
        warnings = [line for line in lines[:-_LOG_LINES] if " WARN " in line]
        said = self.stderr.read_text(errors="replace")[-_STDERR_BYTES:].rstrip()
        return "\n".join([said, "-- NCCL's log", *warnings[-5:], *lines[-_LOG_LINES:]])


def network_settings(network: str, version: str, plugin: Path | None = None) -> dict[str, str]:
    """The variables that make this release use the network, or fail."""
    if network == SOCKET:
        return {"NCCL_NET_PLUGIN": "none", "NCCL_NET": NAMES[SOCKET]}
    major, minor, patch = map(int, version.split("."))
    loaded = net_plugin.variables(plugin or plugin_path(), (major, minor, patch))
    return loaded if network == CHOSEN else {**loaded, "NCCL_NET": NAMES[BAGUA]}


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these settings of NCCL and the plugin and no other ones; on loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    search = programs.search_path(Path(bagua_net.__file__).parents[1])
    return {**kept, **_DEFAULTS, "PYTHONPATH": search, **settings}


class Job:
    """The ranks of a job that has been started."""

    def __init__(self, name: str, ranks: Sequence[_Rank], seconds: float) -> None:
        self._name = name
        self._ranks = ranks
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._ranks)

    # ---- the conversation ----

    def send(self, task: Any, ranks: Iterable[int] | None = None) -> None:
        """Gives a task to these ranks, or to all that live."""
        for number in self._chosen(ranks):
            self._ranks[number].tell("task", task)

    def receive(self, ranks: Iterable[int] | None = None, seconds: float | None = None) -> list[Any]:
        """The next reply of each of these ranks, or of all that live, in their order.

        Raises:
            JobFailed: one of them ended instead, or it took longer than ``seconds``. No rank is left.
        """
        chosen = self._chosen(ranks)
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        with selectors.DefaultSelector() as selector:
            for number in chosen:
                selector.register(self._ranks[number].replies, selectors.EVENT_READ, number)
            while missing := [number for number in chosen if not self._ranks[number].waiting]:
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    self.fail(f"no reply from rank {', '.join(map(str, missing))} in time")
                for key, _ in events:
                    if not self._read(key.data):
                        selector.unregister(key.fd)
                        if not self._ranks[key.data].waiting:
                            self.fail(f"rank {key.data} ended{self._status(key.data)} instead of replying")
        return [self._ranks[number].waiting.popleft() for number in chosen]

    def ask(self, task: Any, ranks: Iterable[int] | None = None, seconds: float | None = None) -> list[Any]:
        """:meth:`send` and :meth:`receive`."""
        chosen = self._chosen(ranks)
        self.send(task, chosen)
        return self.receive(chosen, seconds)

    def log(self, rank: int) -> str:
        """NCCL's log of a rank, as it is now."""
        path = self._ranks[rank].log
        return path.read_text(errors="replace") if path.exists() else ""

    def stderr(self, rank: int) -> str:
        """What the rank has written besides its replies, stdout included."""
        return self._ranks[rank].stderr.read_text(errors="replace")

    def pid(self, rank: int) -> int:
        return self._ranks[rank].popen.pid

    # ---- ends ----

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a rank with a signal, as a crash would, and waits for its end."""
        self._ranks[rank].expected = -number
        self._ranks[rank].popen.send_signal(number)
        self.status(rank)

    def status(self, rank: int, seconds: float = _EXIT_SECONDS) -> int:
        """Waits for a rank's end: its status, below 0 for a signal.

        Raises:
            JobFailed: it does not end in time.
        """
        try:
            return self._ranks[rank].popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"rank {rank} does not end")
            raise

    def finish(self, seconds: float = _EXIT_SECONDS) -> None:
        """Tells the ranks that there are no more tasks, and waits for their ends.

        Raises:
            JobFailed: one of them did not end with status 0 (a killed one: by its signal).
        """
        for rank in self._ranks:
            if rank.popen.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    rank.popen.stdin.close()
        for number, rank in enumerate(self._ranks):
            if self.status(number, seconds) != rank.expected:
                self.fail(f"rank {number} ended{self._status(number)}")

    def fail(self, reason: str) -> None:
        """Ends all ranks and raises JobFailed; those that still run write their stacks first."""
        running = [rank for rank in self._ranks if rank.popen.poll() is None]
        for rank in running:
            rank.popen.send_signal(signal.SIGABRT)
        for rank in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.popen.wait(5.0)
        self.close()
        texts = [f"---- rank {number}{self._status(number)}\n{rank.text()}" for number, rank in enumerate(self._ranks)]
        raise JobFailed("\n".join([f"{self._name}: {reason}", *texts]))

    def close(self) -> None:
        """Ends all ranks at once."""
        for rank in self._ranks:
            rank.popen.kill()
        for rank in self._ranks:
            rank.popen.wait()

    # ---- inside ----

    def _chosen(self, ranks: Iterable[int] | None) -> list[int]:
        living = (number for number, rank in enumerate(self._ranks) if rank.expected == 0)
        return list(living if ranks is None else ranks)

    def _status(self, rank: int) -> str:
        status = self._ranks[rank].popen.poll()
        if status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._ranks[rank].popen.wait(5.0)
        if status is None:
            return ""
        return f" with status {status}" if status >= 0 else f" by {signal.Signals(-status).name}"

    def _read(self, number: int) -> bool:
        """Takes what a rank has written; False at its end."""
        rank = self._ranks[number]
        part = os.read(rank.replies, 1 << 16)
        *lines, rank.unread = (rank.unread + part).split(b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "reply":
                rank.waiting.append(value)
            else:  # "agree": for the others
                for other in self._ranks:
                    if other is not rank:
                        other.tell("agreed", value)
        return bool(part)


@contextmanager
def start(
    program: str,
    ranks: int,
    version: str,
    network: str,
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    each: Sequence[Mapping[str, str]] = (),
    prefixes: Sequence[Sequence[str]] = (),
    seconds: float = _SECONDS,
    plugin: Path | None = None,
    emulator: Path | None = None,
) -> Iterator[Job]:
    """A job, inside the block. Skips the calling test where that NCCL or numpy is not available.

    Args:
        program: a module that calls :func:`nccl_rank.join`.
        version: of NCCL, such as "2.30.7".
        network: one of :data:`NETWORKS`.
        directory: for the ranks' logs.
        settings: variables of all ranks. Those of NCCL and the plugin are not inherited.
        each: further ones of each rank.
        prefixes: words to put in front of each rank's command, such as ``ip netns exec NAME``; they must exec it.
        seconds: the limit for a reply.
        plugin: the plugin of another build than the package's; emulator likewise.
    """
    pytest.importorskip("numpy", reason="numpy, with which the ranks compute, is not installed")
    nccl = nccl_wheels.library(version)
    common = {**network_settings(network, version, plugin), **(settings or {})}
    started: list[_Rank] = []
    try:
        for number in range(ranks):
            own = {**common, **(each[number] if each else {})}
            prefix = prefixes[number] if prefixes else ()
            seat = Seat(number, ranks, str(nccl), str(emulator or ""), 0, os.getpid())
            started.append(_spawn(program, seat, directory, own, prefix))
        job = Job(f"{program}, {ranks} ranks, NCCL {version}, {network}", started, seconds)
        try:
            yield job
        finally:
            job.close()
    finally:
        for rank in started:
            rank.popen.kill()
            rank.popen.wait()
            os.close(rank.replies)


def _spawn(program: str, seat: Seat, directory: Path, settings: Mapping[str, str], prefix: Sequence[str]) -> _Rank:
    stderr, log = directory / f"rank-{seat.rank}.txt", directory / f"nccl-{seat.rank}.log"
    log.unlink(missing_ok=True)
    replies, theirs = os.pipe()
    told = replace(seat, replies=theirs).to_json()
    try:
        with stderr.open("wb") as output:
            popen = subprocess.Popen(
                [*prefix, sys.executable, "-m", f"tests.nccl.{program}", told],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment({"NCCL_DEBUG_FILE": str(log), **settings}),
                pass_fds=(theirs,),
            )
    except OSError:
        os.close(replies)
        raise
    finally:
        os.close(theirs)
    return _Rank(popen, replies, stderr, log)
