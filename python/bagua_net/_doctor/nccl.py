# SPDX-License-Identifier: MIT
"""The doctor's job over NCCL itself, without a GPU: two ranks with the plugin as a job would get it.

They are child processes: this one never loads NCCL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .._activation.status import Status, status
from .._native.plugin import NETWORK_NAME, plugin_path
from .._nccl import discovery, emulated, net_plugin, shared_files
from .check import Check, Checks
from .nccl_job import FAILED, RANKS, STEPS

#: For the whole job; and for the other rank, after one has failed.
TIMEOUT_S = 60.0
_GRACE_S = 1.0
_POLL_S = 0.02

_FIXES = {
    "load": "take the library of an nvidia-nccl-cu12 or -cu13 wheel",
    "network": "`bagua-net run -- COMMAND`; `bagua-net status` tells what is set",
}
_FIX = "`NCCL_DEBUG=INFO bagua-net bench nccl` shows NCCL's log"


@dataclass
class Rank:
    """What a rank reported."""

    number: int
    facts: dict[str, str] = field(default_factory=dict)
    """By the step that is done."""
    reason: str = ""
    """How it failed; "": it did not, or waited for the other one."""
    crashed: bool = False
    """A signal ended it, so it failed first."""

    @property
    def stopped_at(self) -> int:
        """The index of the first step that is not done."""
        return next((at for at, step in enumerate(STEPS) if step not in self.facts), len(STEPS))


def _variables(found: Status, version: tuple[int, int, int]) -> dict[str, str]:
    """What the job gets beside this environment: where nothing is set, what `bagua-net run` gives."""
    if found.plugin.value or found.network.value:
        return {}
    return {**net_plugin.variables(plugin_path(), version), "NCCL_NET": NETWORK_NAME}


def _start(rank: int, library: Path, descriptor: int, variables: dict[str, str]) -> subprocess.Popen[str]:
    parent = str(os.getpid())
    root = str(Path(__file__).resolve().parents[2])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_DEBUG")}
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "bagua_net._doctor.nccl_job", str(rank), str(library), str(descriptor), parent],
        env=inherited | variables | {"PYTHONPATH": search, "NCCL_HOSTID": f"bagua-net-doctor-{rank}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(descriptor,),
        text=True,
    )


def _start_all(library: Path, variables: dict[str, str]) -> list[subprocess.Popen[str]]:
    read, write = os.pipe()
    try:
        return [_start(rank, library, (write, read)[rank], variables) for rank in range(RANKS)]
    finally:
        os.close(read)
        os.close(write)


def _wait(processes: list[subprocess.Popen[str]]) -> None:
    """Until all have ended, or the time is over. Their few lines fit into the pipes."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return
        if any(codes):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(_POLL_S)


def _collect(number: int, process: subprocess.Popen[str]) -> Rank:
    """The rank's report. Ends a rank that waits for the other one still."""
    ended = process.poll() is not None
    process.kill()
    out, err = process.communicate()
    rank = Rank(number)
    for line in out.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # another library's line
            said = json.loads(line)
            rank.facts[said["step"]] = said["fact"]
    if ended and process.returncode != 0:
        rank.reason = f"rank {number} {_how(process.returncode, rank.facts, err)}"
        rank.crashed = process.returncode < 0
    return rank


def _how(code: int, facts: dict[str, str], err: str) -> str:
    """How a rank ended, after its number."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if FAILED in facts:
        return f"failed: {facts[FAILED]}"
    return f"ended with exit code {code}: {(err.strip().splitlines() or ['it gave no reason'])[-1]}"


def job(library: Path, variables: dict[str, str]) -> list[Rank]:
    """Runs the job; returns when no process of it is left."""
    processes = _start_all(library, variables)
    left: set[Path] = set()
    try:
        _wait(processes)
        left = shared_files.of(process.pid for process in processes if process.poll() is None)
        return [_collect(number, process) for number, process in enumerate(processes)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shared_files.remove(left)


def cause(ranks: list[Rank]) -> str:
    """Why a job stopped: what failed first, as far as that can be told, or who has not ended."""
    failed = sorted((rank for rank in ranks if rank.reason), key=lambda rank: not rank.crashed)
    first = min(ranks, key=lambda rank: rank.stopped_at)
    return failed[0].reason if failed else f"rank {first.number} was not done within {TIMEOUT_S:g} s"


def _step(step: str, fact: str, found: Status) -> Check:
    """The finding about a step that is done."""
    name = f"NCCL {step}"
    if step != "network" or fact == NETWORK_NAME:
        return Check(name, "ok", f"{fact}, {_origin(found)}" if step == "network" else fact)
    why, _, fix = (found.problem or "it does not say why").partition("; ")
    return Check(name, "fail", f"{fact}, not {NETWORK_NAME}: {why}", fix or _FIXES[step])


def _stop(step: str, reason: str) -> Check:
    """The finding about the step that failed."""
    fact, _, fix = reason.partition("; ")
    return Check(f"NCCL {step}", "fail", fact, fix or _FIXES.get(step, _FIX))


def _origin(found: Status) -> str:
    given = found.plugin.layer or found.network.layer
    return f"by {given}" if given else "as `bagua-net run` turns it on; it is off here"


def checks(named: str) -> tuple[Callable[[], Checks], ...]:
    """The check with the NCCL of this path, or with "auto" the one that a job would use."""

    def check_nccl_job() -> Checks:
        """At which step does a job of two ranks stop?"""
        try:
            library = discovery.libraries(named)[0]
            version = emulated.probe(library)
        except (discovery.NcclNotFound, emulated.NcclUnusable) as error:
            yield _stop("load", str(error))
            return
        found = status()
        ranks = job(library, _variables(found, version))
        first = min(ranks, key=lambda rank: rank.stopped_at)
        for step in STEPS[: first.stopped_at]:
            yield _step(step, first.facts[step], found)
        if first.stopped_at < len(STEPS):
            yield _stop(STEPS[first.stopped_at], cause(ranks))

    return (check_nccl_job,)
