# SPDX-License-Identifier: MIT
"""Processes that serve many tests, each a rank of one ``bagua_net`` group and of a gloo group over the same ranks.

    with Ranks(3) as ranks:
        assert ranks.run(sum_of_ranks, 5) == [15, 15, 15]

    def sum_of_ranks(here: Here, each: int) -> int:      # at the top of a test module
        tensor = torch.tensor([each])
        dist.all_reduce(tensor)
        return int(tensor)

The ranks import the function by its name. Its exceptions come back as text; a rank that dies or takes too long fails
the test, with the output and the stacks of all ranks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from tests.support import drivers, forked, programs

#: Seconds until a group's operation times out, and until the test gives up on its ranks.
GROUP_SECONDS = 60
_SECONDS = 120
_EXIT_SECONDS = 60
#: What torch says without it.
_NO_NUMPY = ("Numpy is not available", "No module named 'numpy'")


@dataclass(frozen=True)
class Outcome:
    """A function's result on one rank, or its exception: "ValueError: …", and the traceback."""

    value: Any = None
    error: str = ""
    where: str = ""


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a process of this suite: all on the loopback interface, with one thread to compute. It imports the tests."""
    return drivers.environment(
        {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        | {"PYTHONPATH": programs.search_path()}
        | dict(settings or {})
    )


#: Of a rank's start, nearly all is these imports.
TEMPLATE = forked.Template(
    "bagua_net.torch", __name__, environment=environment, free="RANK|WORLD_SIZE|NCCL_HOSTID|BAGUA_NET_.*"
)


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    connection: multiprocessing.connection.Connection
    stdout: Path
    stderr: Path


class Ranks:
    """Ranks 0 to size - 1. They start with the first call, and again with the first one after a failure."""

    def __init__(self, size: int, settings: Mapping[str, str] | None = None, hosts: int = 1) -> None:
        """``hosts``: as many as the ranks believe that they are on; only ranks of one host share memory."""
        self.size = size
        self._hosts = hosts
        self._settings = dict(settings or {})
        self._processes: dict[int, _Process] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="bagua-net-ranks-")
        self._calls = 0
        self._busy: list[int] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._kill_all()
        self._directory.cleanup()

    # ---- calls ----

    def run(self, function: Callable[..., Any], *arguments: Any, seconds: int = _SECONDS) -> list[Any]:
        """Its result on each rank. An AssertionError with its exceptions, after which the ranks start again."""
        outcomes = self.outcomes(function, *arguments, seconds=seconds)
        raised = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome.error}
        if raised:
            told = "".join(f"\n---- rank {rank}: {outcome.error}\n{outcome.where}" for rank, outcome in raised.items())
            if any(each in told for each in _NO_NUMPY) and importlib.util.find_spec("numpy") is None:
                self._skip("numpy, which torch needs here, is not installed")
            self._give_up(f"{function.__name__} raised on {len(raised)} of {self.size} ranks{told}")
        return [outcome.value for outcome in outcomes]

    def outcomes(self, function: Callable[..., Any], *arguments: Any, seconds: int = _SECONDS) -> list[Outcome]:
        """The same where a rank may raise."""
        self.begin(function, *arguments)
        collected = self.collect(seconds)
        return [collected[rank] for rank in sorted(collected)]

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Makes every live rank call it."""
        if self._busy:  # the test before has not collected: its answers are not this call's
            self._kill_all()
            self._busy = []
        self._start()
        self._calls += 1
        self._busy = sorted(self._processes)
        for rank in self._busy:
            call = (self._calls, function.__module__, function.__qualname__, arguments)
            self._processes[rank].connection.send(call)

    def collect(self, seconds: int = _SECONDS) -> dict[int, Outcome]:
        """The outcomes of :meth:`begin`, by rank, without the ranks that :meth:`kill` ended."""
        deadline = time.monotonic() + seconds
        outcomes: dict[int, Outcome] = {}
        while missing := [rank for rank in self._busy if rank not in outcomes and rank in self._processes]:
            ranks = {self._processes[rank].connection: rank for rank in missing}
            ready = multiprocessing.connection.wait(list(ranks), max(0.0, deadline - time.monotonic()))
            if not ready:
                self._give_up(f"no answer from the ranks {missing} within {seconds} s")
            for connection in ready:
                rank = ranks[connection]  # type: ignore[index]
                try:
                    outcomes[rank] = self._processes[rank].connection.recv()
                except (EOFError, ConnectionResetError):
                    self._give_up(f"rank {rank} is gone")
        self._busy = []
        return outcomes

    def hear(self, *what: str) -> None:
        """Waits until the ranks of :meth:`begin` have said all of these (Here.say)."""
        board = dist.PrefixStore(f"call/{self._calls}", self._store)
        board.wait(list(what), timedelta(seconds=_SECONDS))

    def kill(self, rank: int) -> None:
        """Ends a rank as a crash would: its host closes the connections."""
        process = self._processes.pop(rank)
        process.popen.kill()
        process.popen.wait(_EXIT_SECONDS)
        process.connection.close()

    # ---- processes ----

    def process(self, rank: int) -> subprocess.Popen[bytes]:
        return self._processes[rank].popen

    def _start(self) -> None:
        if self._processes:
            return
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.size):
            self._processes[rank] = self._spawn(rank)
        self._busy = list(range(self.size))
        failed = [outcome.where for outcome in self.collect().values() if outcome.error]
        if failed:
            self._give_up("".join(failed))

    def _spawn(self, rank: int) -> _Process:
        ours, theirs = multiprocessing.Pipe()
        stem = Path(self._directory.name) / f"{self._calls}-{rank}"
        stdout, stderr = stem.with_suffix(".stdout"), stem.with_suffix(".stderr")
        numbers = (theirs.fileno(), rank, self.size, self._store.port, GROUP_SECONDS)
        with theirs, stdout.open("wb") as out, stderr.open("wb") as err:
            popen = TEMPLATE.popen(
                [sys.executable, "-m", "tests.support.rank", *map(str, numbers)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(
                    self._settings
                    | {"RANK": str(rank), "WORLD_SIZE": str(self.size)}
                    | ({"NCCL_HOSTID": str(rank * self._hosts // self.size)} if self._hosts > 1 else {})
                ),
            )
        return _Process(popen, ours, stdout, stderr)

    def close(self) -> None:
        """Ends the ranks. An AssertionError where one does not end, has a status other than 0, or wrote to stdout."""
        for process in self._processes.values():
            with contextlib.suppress(OSError):
                process.connection.send(None)
        deadline = time.monotonic() + _EXIT_SECONDS
        for rank, process in self._processes.items():
            try:
                status = process.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._give_up(f"rank {rank} does not end")
            if status != 0:
                self._give_up(f"rank {rank} ended with status {status}")
            if process.stdout.stat().st_size > 0:
                self._give_up(f"rank {rank} wrote to stdout: {process.stdout.read_text(errors='replace')[:2000]}")
        self._kill_all()

    def _kill_all(self) -> None:
        for rank in list(self._processes):
            self.kill(rank)

    def _skip(self, reason: str) -> None:
        import pytest  # benchmarks use ranks without it

        self._kill_all()
        pytest.skip(reason)

    def _give_up(self, reason: str) -> None:
        """Ends all ranks and raises with their output; live ones print their stacks first."""
        for process in self._processes.values():
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGABRT)
        text = [reason]
        for rank, process in self._processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(10)
            said = process.stderr.read_text(errors="replace")[-6000:]
            text.append(f"---- stderr of rank {rank} (status {process.popen.returncode})\n{said}")
        self._kill_all()
        raise AssertionError("\n".join(text))


def refusal(what: Callable[[], Any]) -> str:
    """The exception of a call that must be refused or must fail, as "ValueError: …"; else "accepted"."""
    try:
        work = what()
        if isinstance(work, dist.Work):
            work.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
