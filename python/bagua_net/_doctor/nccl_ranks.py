# SPDX-License-Identifier: MIT
"""Ranks of the doctor's job over NCCL, what they report, and why a job stopped.

Each rank is a child process of the doctor on its host, which itself never loads NCCL.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._activation.status import Status, status
from .._machine import unanswered
from .._native.plugin import NETWORK_NAME, plugin_path
from .._nccl import discovery, emulated, net_plugin, shared_files
from .nccl_job import FAILED, FOLLOWED, STEPS

#: For the whole job; and for the other ranks, after one has failed.
TIMEOUT_S = 60.0
_GRACE_S = 1.0
_ID_BYTES = 128
#: In what a network, ours or another, logs of its failures.
_OF_NETWORK = "NET/"


@dataclass(frozen=True)
class Usable:
    """The NCCL of a job here."""

    library: Path
    version: tuple[int, int, int]
    found: Status

    @property
    def variables(self) -> dict[str, str]:
        """What the job gets beside this environment: where nothing is set, what `bagua-net run` gives."""
        if self.found.plugin.value or self.found.network.value:
            return {}
        return {**net_plugin.variables(plugin_path(), self.version), "NCCL_NET": NETWORK_NAME}


def choose(named: str) -> Usable:
    """The NCCL of this path, or with "auto" the one that a job would use.

    Raises:
        NcclNotFound: no NCCL was found.
        NcclUnusable: it does not run without a GPU here.
    """
    library = discovery.libraries(named)[0]
    return Usable(library, emulated.probe(library), status())


@dataclass(frozen=True)
class Report:
    """What a rank did."""

    facts: dict[str, str]
    """By the step that is done."""
    reason: str = ""
    """How it failed, a sentence without its subject; "": it did not, or waited for another one."""
    crashed: bool = False
    """A signal ended it, so it failed first."""
    followed: bool = False
    """It lost another rank, which may have failed before."""
    silent: list[tuple[str, int]] = field(default_factory=list)
    """Addresses and ports that did not answer it when it was ended."""

    @property
    def stopped_at(self) -> int:
        """The index of the first step that is not done."""
        return next((at for at, step in enumerate(STEPS) if step not in self.facts), len(STEPS))

    @property
    def precedence(self) -> tuple[bool, bool, bool]:
        """The lowest one of those that failed is the cause."""
        return not self.crashed, self.followed, _OF_NETWORK not in self.reason


class RankProcess:
    """A rank that runs.

    Args:
        where: of the ranks, in words.
        variables: for it, beside this environment.
    """

    def __init__(self, rank: int, nranks: int, where: str, library: Path, variables: Mapping[str, str]) -> None:
        read, write = os.pipe()
        theirs, ours = (write, read) if rank == 0 else (read, write)
        self._pipe = os.fdopen(ours, "rb" if rank == 0 else "wb", buffering=0)
        self._said = ("", "")
        try:
            self._process = _start([str(rank), str(nranks), where, str(library), str(theirs)], theirs, variables)
        finally:
            os.close(theirs)

    def give_id(self, seconds: float) -> bytes:
        """NCCL's id, which rank 0 makes; b"": it made none in that time."""
        ready, _, _ = select.select([self._pipe], [], [], seconds)
        return os.read(self._pipe.fileno(), _ID_BYTES) if ready else b""

    def take_id(self, unique_id: bytes) -> None:
        """For every other rank."""
        with contextlib.suppress(BrokenPipeError), self._pipe:  # it has ended, which its report says
            os.write(self._pipe.fileno(), unique_id)

    def code(self, seconds: float = 0.0) -> int | None:
        """Its exit code, for which this waits so long; None: it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    def end(self) -> None:
        """Leaves nothing of it. Repeated calls do nothing."""
        if self._process.stdout is None or self._process.stdout.closed:
            return
        left = shared_files.of([self._process.pid]) if self.code() is None else set()
        self._process.kill()
        self._said = self._process.communicate()  # a few lines, for which the pipes had room
        self._pipe.close()
        shared_files.remove(left)

    def report(self) -> Report:
        """Ends a rank that waits still."""
        code = self.code()
        silent = unanswered.of(self._process.pid) if code is None else []
        self.end()
        out, err = self._said
        facts = {}
        for line in out.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # another library's line
                said = json.loads(line)
                facts[said["step"]] = said["fact"]
        reason = _how(code, facts, err) if code else ""
        return Report(facts, reason, crashed=(code or 0) < 0, followed=code == FOLLOWED, silent=silent)


def _start(arguments: list[str], descriptor: int, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_DEBUG")}
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "bagua_net._doctor.nccl_job", *arguments, str(os.getpid())],
        env={
            **inherited,
            **variables,
            "PYTHONPATH": search,
            "PYTHONSAFEPATH": "1",  # see _bench/ranks/launch.py
            "NCCL_HOSTID": f"bagua-net-doctor-{arguments[0]}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(descriptor,),
        text=True,
    )


def _how(code: int, facts: Mapping[str, str], err: str) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if FAILED in facts:
        return f"failed: {facts[FAILED]}"
    return f"ended with exit code {code}: {(err.strip().splitlines() or ['it gave no reason'])[-1]}"


def await_all(codes: Callable[[], Sequence[int | None]], deadline: float) -> None:
    """Until all ranks have ended, or the time is over.

    Args:
        codes: their exit codes, asked for again and again; it waits a moment for them.
        deadline: of time.monotonic().
    """
    while time.monotonic() < deadline:
        now = codes()
        if None not in now:
            return
        if any(now):
            deadline = min(deadline, time.monotonic() + _GRACE_S)


def cause(reports: Mapping[str, Report]) -> str:
    """Why a job stopped: what failed first, as far as that can be told, or who has not ended. Of several errors that of
    a network comes first: NCCL's own often is another rank's consequence.

    Args:
        reports: by the ranks' names.
    """
    failed = [name for name, each in reports.items() if each.reason]
    if failed:
        first = min(failed, key=lambda name: reports[name].precedence)
        return f"{first} {reports[first].reason}"
    at = min(each.stopped_at for each in reports.values())
    waiting = [name for name, each in reports.items() if each.stopped_at == at]
    return f"not done within {TIMEOUT_S:g} s: {', '.join(waiting)}"
