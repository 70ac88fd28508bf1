# SPDX-License-Identifier: MIT
"""A job of the hosts' own NCCL between them: a rank on each, and one allreduce."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from ..._native.plugin import NETWORK_NAME
from .. import nccl, nccl_ranks
from ..check import Check, Checks
from ..nccl_job import STEPS
from ..nccl_ranks import Report
from .facts import Facts
from .link import Hosts, PeerLost, Reply, Request

#: What a host may take for an answer, beside what its rank takes.
_ANSWER_S = 30.0
_POLL_S = 0.5
_FIX = "what fails above; or `bagua-net doctor --nccl` on that host"


class Job:
    """One run of it.

    Args:
        ranks: the hosts of the ranks, in order, by their numbers.
    """

    def __init__(self, hosts: Hosts, ranks: Mapping[int, Facts]) -> None:
        self._hosts = hosts
        self._ranks = ranks
        #: why a host is lost, by its name
        self._lost: dict[str, str] = {}

    def run(self) -> Checks:
        """A host that is lost ends the others' ranks."""
        deadline = time.monotonic() + nccl_ranks.TIMEOUT_S
        with contextlib.suppress(PeerLost):
            self._start()
            nccl_ranks.await_all(self._codes, deadline)
        reports = self._end()
        yield from findings({host.name: host for host in self._ranks.values()}, reports, self._lost)

    def _ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        """Raises PeerLost where one has no answer."""
        replies = self._hosts.ask(requests, seconds)
        self._note_lost(replies)
        if self._lost:
            raise PeerLost("a rank's host")
        return replies

    def _note_lost(self, replies: Mapping[int, Reply]) -> None:
        for number, reply in replies.items():
            if problem := reply.get("lost") or reply.get("error"):
                self._lost[self._ranks[number].name] = str(problem)

    def _start(self) -> None:
        """Rank 0, and with the id that it makes the others. Without one they have nothing to do."""
        first, *others = self._ranks
        begin: Request = {"do": "start_rank", "nranks": len(self._ranks)}
        made = self._ask({first: begin | {"rank": 0, "unique_id": ""}}, nccl_ranks.TIMEOUT_S + _ANSWER_S)[first][
            "unique_id"
        ]
        if made:
            self._ask(
                {number: begin | {"rank": at, "unique_id": made} for at, number in enumerate(others, 1)}, _ANSWER_S
            )
        else:
            self._ranks = {first: self._ranks[first]}

    def _codes(self) -> list[int | None]:
        request: Request = {"do": "await_rank", "seconds": _POLL_S}
        return [reply["code"] for reply in self._ask(dict.fromkeys(self._ranks, request), _ANSWER_S).values()]

    def _end(self) -> dict[str, Report]:
        """What the ranks report, none of which runs any more, of hosts that are not lost."""
        left = {number: host for number, host in self._ranks.items() if host.name not in self._lost}
        request: Request = {"do": "end_rank"}
        replies = self._hosts.ask(dict.fromkeys(left, request), _ANSWER_S) if left else {}
        self._note_lost(replies)
        return {left[number].name: Report(**reply) for number, reply in replies.items() if "facts" in reply}


def findings(ranks: Mapping[str, Facts], reports: Mapping[str, Report], lost: Mapping[str, str]) -> Checks:
    """What the reports say of the job.

    Args:
        ranks: their hosts, by name, as the others.
        reports: of those that ran.
        lost: why a host was lost meanwhile.
    """
    for name, report in reports.items():
        network = report.facts.get("network", NETWORK_NAME)
        if network != NETWORK_NAME:
            yield Check(f"{name}: NCCL network", "fail", *nccl.other_network(network, ranks[name].problem))
    at = min((report.stopped_at for report in reports.values()), default=0)
    if at == len(STEPS) and not lost:
        yield _done(next(iter(reports.values())).facts)
    else:
        yield nccl.stop(STEPS[min(at, len(STEPS) - 1)], *_why(ranks, reports, lost))


def _done(facts: Mapping[str, str]) -> Check:
    fact = f"{facts['allreduce']} over {facts['network']}, {facts['result']}; {facts['init']}"
    return Check("NCCL allreduce", "ok", fact)


def _why(ranks: Mapping[str, Facts], reports: Mapping[str, Report], lost: Mapping[str, str]) -> tuple[str, str]:
    """The reason, with what to do behind "; " where it says that; and what to do otherwise."""
    if lost:
        name, problem = next(iter(lost.items()))
        return f"{name}: {problem}", "look at that host"
    if len({host.nccl for host in ranks.values()}) > 1:
        return nccl_ranks.cause(reports), "the same NCCL on all hosts"
    failed = any(report.reason for report in reports.values())
    return ("" if failed else _silence(ranks, reports)) or nccl_ranks.cause(reports), _FIX


def _silence(ranks: Mapping[str, Facts], reports: Mapping[str, Report]) -> str:
    """Which rank tries to reach which other one, or itself, and what to do; "": none does."""
    owners = {address.partition("%")[0]: host for host in ranks.values() for address in host.addresses}
    silent = [(name, *target) for name, report in reports.items() for target in report.silent if target[0] in owners]
    if not silent:
        return ""
    name, address, port = min(silent, key=lambda each: owners[each[1]].name == each[0])
    there = owners[address]
    ports = there.ports if there.ports and there.ports[0] <= port <= there.ports[1] else there.kernel_ports
    fact = f"{name} has no answer from {there.name} ({address}, port {port}) within {nccl_ranks.TIMEOUT_S:g} s"
    through = f"TCP from {name} to the ports {ports[0]}-{ports[1]}"
    return f"{fact}; the firewall of {there.name}, or one between, has to let {through}"
