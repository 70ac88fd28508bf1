# SPDX-License-Identifier: MIT
"""The doctor's job over NCCL itself, without a GPU: two ranks with the plugin as a job would get it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .._activation.status import Status
from .._native.plugin import NETWORK_NAME
from .._nccl import discovery, emulated
from . import nccl_ranks
from .check import Check, Checks
from .nccl_job import STEPS
from .nccl_ranks import RankProcess, Report

_RANKS = 2
_POLL_S = 0.02

_FIXES = {
    "load": "take the library of an nvidia-nccl-cu12 or -cu13 wheel",
    "network": "`bagua-net run -- COMMAND`; `bagua-net status` tells what is set",
}
_FIX = "`NCCL_DEBUG=INFO bagua-net bench nccl` shows NCCL's log"


def _codes(processes: list[RankProcess]) -> list[int | None]:
    time.sleep(_POLL_S)
    return [process.code() for process in processes]


def job(library: Path, variables: Mapping[str, str]) -> dict[str, Report]:
    """Runs the job; returns when no process of it is left."""
    deadline = time.monotonic() + nccl_ranks.TIMEOUT_S
    processes: list[RankProcess] = []
    try:
        for rank in range(_RANKS):
            processes.append(RankProcess(rank, _RANKS, "this host", library, variables))
        processes[1].take_id(processes[0].give_id(nccl_ranks.TIMEOUT_S))
        nccl_ranks.await_all(lambda: _codes(processes), deadline)
        return {f"rank {rank}": process.report() for rank, process in enumerate(processes)}
    finally:
        for process in processes:
            process.end()


def other_network(network: str, problem: str) -> tuple[str, str]:
    """Fact and fix where a rank uses another network than the plugin's.

    Args:
        problem: why the plugin is off, and what to do; "": that is not known.
    """
    why, _, fix = (problem or "it does not say why").partition("; ")
    return f"{network}, not {NETWORK_NAME}: {why}", fix or _FIXES["network"]


def _step(step: str, fact: str, found: Status) -> Check:
    """The finding about a step that is done."""
    name = f"NCCL {step}"
    if step != "network" or fact == NETWORK_NAME:
        return Check(name, "ok", f"{fact}, {_origin(found)}" if step == "network" else fact)
    return Check(name, "fail", *other_network(fact, found.problem or ""))


def stop(step: str, reason: str, otherwise: str = "") -> Check:
    """The finding about the step that failed.

    Args:
        reason: the fact; behind "; " what to do, where it says that.
        otherwise: what to do where the reason does not say it; "": what helps at that step.
    """
    fact, _, fix = reason.partition("; ")
    return Check(f"NCCL {step}", "fail", fact, fix or otherwise or _FIXES.get(step, _FIX))


def _origin(found: Status) -> str:
    given = found.plugin.layer or found.network.layer
    return f"by {given}" if given else "as `bagua-net run` turns it on; it is off here"


def checks(named: str) -> tuple[Callable[[], Checks], ...]:
    """The check with the NCCL of this path, or with "auto" the one that a job would use."""

    def check_nccl_job() -> Checks:
        """At which step does a job of two ranks stop?"""
        try:
            nccl = nccl_ranks.choose(named)
        except (discovery.NcclNotFound, emulated.NcclUnusable) as error:
            yield stop("load", str(error))
            return
        reports = job(nccl.library, nccl.variables)
        first = min(reports.values(), key=lambda report: report.stopped_at)
        for step in STEPS[: first.stopped_at]:
            yield _step(step, first.facts[step], nccl.found)
        if first.stopped_at < len(STEPS):
            yield stop(STEPS[first.stopped_at], nccl_ranks.cause(reports))

    return (check_nccl_job,)
