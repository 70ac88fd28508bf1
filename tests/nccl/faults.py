# SPDX-License-Identifier: MIT
"""Faults of a job, and what its other ranks meet: NCCL's codes, the time that they take, what is left.

    findings = faults.killed(Place("2.30.7", "bagua", tmp_path))   # one for each rank that is left
    assert findings[0].code == faults.REMOTE_ERROR

test_faults.py asserts what matters; fault_table.py writes all of it down.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.nccl import nccl_job, releases
from tests.nccl.nccl_job import Job
from tests.support import netns
from tests.support.netns import Host

#: ncclResult_t.
NOTHING, SYSTEM_ERROR, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS = 0, 2, 5, 6, 7

#: For the error of a fault; in releases that do not report it, this time passes.
_ERROR_SECONDS = 30.0
_UNREPORTED_SECONDS = 2.0
#: So long a silent peer is watched.
_SILENCE_SECONDS = 2.0
_SMALL, _LARGE = 64, 4 << 20
_INTERFACE = "link0"


@dataclass(frozen=True)
class Place:
    """Where a fault happens."""

    version: str
    network: str
    directory: Path
    end_seconds: float = 60.0
    """For ncclCommAbort."""
    settings: Mapping[str, str] = field(default_factory=dict)
    plugin: Path | None = None
    prefix: Sequence[str] = ()
    """Of each rank's command."""

    @property
    def error_seconds(self) -> float:
        return _ERROR_SECONDS if releases.reports_errors(self.version) else _UNREPORTED_SECONDS


@dataclass(frozen=True)
class Finding:
    """What one rank met."""

    code: int
    """Of ncclCommGetAsyncError; NOTHING: no error while it was watched."""
    seconds: float
    """From the fault, or from the call where that is the fault, to the error or to the end of watching."""
    said: str
    """NCCL's last warning."""
    done: bool
    """Its calls had ended."""
    log: str
    end: int | None
    """Of the abort (or destroy, where calls went on to their end); None: it did not return in time."""
    end_seconds: float
    stream: int | None
    """Of the stream afterwards, a cudaError_t."""
    left: Mapping[str, list[int]]
    """Descriptors and threads that there are more of than before, [before, after]; afterwards too, if they stay."""
    wrong: int = 0
    """Elements, where calls ended."""


@contextmanager
def _job(place: Place, ranks: int = 2, hosts: Sequence[Host] = (), debug: str = "WARN") -> Iterator[Job]:
    """A job whose ranks have had a communicator before. With more in its log, NCCL 2.19 to 2.25 would fill a disk:
    their progress threads repeat what failed until the abort."""
    settings = {**releases.settings(place.version), "NCCL_DEBUG": debug, **place.settings}
    prefixes = [place.prefix] * ranks
    if hosts:
        settings["NCCL_SOCKET_IFNAME"] = _INTERFACE
        prefixes = [[*hosts[rank % len(hosts)].prefix, *place.prefix] for rank in range(ranks)]
    with nccl_job.start(
        "fault_rank",
        ranks,
        place.version,
        place.network,
        place.directory,
        settings=settings,
        prefixes=prefixes,
        plugin=place.plugin,
    ) as job:
        assert job.ask({"do": "warm"}) == [0] * ranks
        yield job


@contextmanager
def _connected(place: Place, ranks: int = 2, hosts: Sequence[Host] = ()) -> Iterator[Job]:
    """The next communicator of the job's ranks works."""
    with _job(place, ranks, hosts) as job:
        assert job.ask({"do": "connect"}) == [0] * ranks
        yield job


@contextmanager
def _two_hosts() -> Iterator[tuple[Host, Host]]:
    with netns.two_hosts() as hosts:
        for number, host in enumerate(hosts, start=1):
            host.ip("address", "add", f"10.77.0.{number}/24", "dev", _INTERFACE)
        yield hosts


def _findings(
    place: Place,
    job: Job,
    ranks: Sequence[int],
    watched: Sequence[Mapping[str, Any]],
    since: float,
    **options: Any,
) -> list[Finding]:
    """Ends these ranks' communicators."""
    ends = job.ask({"do": "end", "how": "abort", "seconds": place.end_seconds, **options}, ranks)
    return [
        Finding(
            seen["code"],
            seen["at"] - since,
            seen["said"],
            seen["done"],
            job.log(rank),
            end["code"],
            end["seconds"],
            end["stream"],
            end["left"],
        )
        for rank, seen, end in zip(ranks, watched, ends, strict=True)
    ]


def _flood(
    job: Job, others: Sequence[int], victim: int, seconds: float, signal_name: str = "", fewer: bool = False
) -> float:
    """Floods; the victim gets a signal in the middle, and the others watch. The time of it."""
    job.send({"do": "flood_and_watch", "seconds": seconds, "fewer": fewer}, others)
    return float(job.ask({"do": "flood", "signal_name": signal_name, "fewer": fewer}, [victim])[0])


# ---- a process ----


def killed(place: Place, ranks: int = 2) -> list[Finding]:
    """The last rank is killed in the middle of large allreduces."""
    others, victim = list(range(ranks - 1)), ranks - 1
    with _connected(place, ranks) as job:
        since = _flood(job, others, victim, place.error_seconds, "SIGKILL")
        job.kill(victim)
        return _findings(place, job, others, job.receive(others), since)


def killed_of_four(place: Place) -> list[Finding]:
    """In a ring of four, the rank that receives from the killed one learns of it at once, and the others, at the
    latest, from the rank before them, when that aborts. A rank that has nothing to send to the killed one does not
    notice."""
    others, victim = [0, 1, 2], 3
    ring = replace(place, settings={**place.settings, "NCCL_ALGO": "Ring"})
    found: list[Finding] = []
    with _connected(ring, 4) as job:
        since = _flood(job, others, victim, place.error_seconds, "SIGKILL")
        job.kill(victim)
        for rank in others:
            found += _findings(place, job, [rank], job.receive([rank]), since)
            if found[-1].end is None:
                break
    return found


def stopped(place: Place) -> list[Finding]:
    """A rank is stopped in the middle, and goes on later."""
    with _connected(place) as job:
        since = _flood(job, [0], 1, _SILENCE_SECONDS, "SIGSTOP", fewer=True)
        watched = job.receive([0])
        os.kill(job.pid(1), signal.SIGCONT)
        job.receive([1])
        return _with_wrong(job.ask({"do": "finish"}), _findings(place, job, [0], watched, since, how="destroy"))


def _with_wrong(wrong: Sequence[int], findings: Sequence[Finding]) -> list[Finding]:
    return [replace(finding, wrong=sum(wrong)) for finding in findings]


def stopped_for_good(place: Place) -> list[Finding]:
    """A rank is stopped in the middle, and the other one gives up."""
    with _connected(place) as job:
        since = _flood(job, [0], 1, _SILENCE_SECONDS, "SIGSTOP")
        found = _findings(place, job, [0], job.receive([0]), since)
        job.kill(1)
        return found


def aborts(place: Place) -> list[Finding]:
    """A rank aborts in the middle, alone. It is the first of the two."""
    with _connected(place) as job:
        _flood(job, [0], 1, place.error_seconds)
        since = time.monotonic()
        first = job.ask({"do": "watch", "seconds": 0}, [1])
        found = _findings(place, job, [1], first, since)
        if found[0].end is None:
            return found
        return found + _findings(place, job, [0], job.receive([0]), since)


def does_not_call(place: Place) -> list[Finding]:
    """A rank makes no call; the other one, which waits for it, gives up. Then the first one makes its call. It is the
    second of the two."""
    with _connected(place) as job:
        since = time.monotonic()
        task = {"do": "call_and_watch", "counts": [_LARGE, _LARGE]}
        found = _findings(place, job, [0], job.ask({**task, "seconds": 0.5}, [0]), since)
        if found[0].end is None:
            return found
        since = time.monotonic()
        return found + _findings(place, job, [1], job.ask({**task, "seconds": place.error_seconds}, [1]), since)


def calls_differ(place: Place) -> list[Finding]:
    """Ranks that call allreduce with sizes for which NCCL chooses different protocols, so that a message is larger than
    the receive for it. The first of the two sends it."""
    with _connected(place) as job:
        since = time.monotonic()
        task = {"do": "call_and_watch", "counts": [_LARGE, _SMALL]}
        # NCCL's own network tells only one of the two.
        seconds = place.error_seconds if place.network == nccl_job.BAGUA else _UNREPORTED_SECONDS
        return _findings(place, job, [0, 1], job.ask({**task, "seconds": seconds}), since)


def shrinks(place: Place) -> list[tuple[int, int]]:
    """One of three ranks is killed, and the others make a communicator without it: NCCL's code, and the number of wrong
    elements of a call. Where NCCL has reported the error, only the rank that receives from the killed one tries."""
    with _connected(replace(place, settings={**place.settings, "NCCL_ALGO": "Ring"}), 3) as job:
        _flood(job, [0, 1], 2, place.error_seconds, "SIGKILL")
        job.kill(2)
        ranks = [0] if job.receive([0])[0]["code"] else [0, 1]
        return [(row["code"], row["wrong"]) for row in job.ask({"do": "shrink", "excluded": [2]}, ranks)]


# ---- a beginning ----


def missing(place: Place) -> list[Finding]:
    """The last of three ranks never comes; the others give up."""
    with _job(place) as job:
        since = time.monotonic()
        unique_id = job.ask({"do": "begin", "ranks": 3}, [0])[0]
        job.ask({"do": "begin", "ranks": 3, "unique_id": unique_id}, [1])
        watched = job.ask({"do": "watch_beginning", "seconds": 0.5})
        return _findings(place, job, [0, 1], watched, since, settling=1.0)


def killed_while_connecting(place: Place) -> list[Finding]:
    """The last rank is killed when the others have begun to connect to it."""
    with _job(place, debug="INFO") as job:
        begin = len(job.log(1))
        unique_id = job.ask({"do": "begin", "ranks": 2}, [0])[0]
        job.ask({"do": "begin", "ranks": 2, "unique_id": unique_id}, [1])
        since = time.monotonic()
        while "[receive] via NET/" not in job.log(1)[begin:]:
            assert time.monotonic() < since + _ERROR_SECONDS, job.log(1)
            time.sleep(0.001)
        job.kill(1)
        return _findings(place, job, [0], job.ask({"do": "watch_beginning", "seconds": 0.5}, [0]), since)


# ---- the network ----


def cut(place: Place) -> list[Finding]:
    """The link goes down in the middle, and comes back."""
    with _two_hosts() as hosts, _connected(place, 2, hosts) as job:
        job.ask({"do": "flood", "fewer": True})
        hosts[1].ip("link", "set", _INTERFACE, "down")
        since = time.monotonic()
        watched = job.ask({"do": "watch", "seconds": _SILENCE_SECONDS})
        hosts[1].ip("link", "set", _INTERFACE, "up")
        return _with_wrong(job.ask({"do": "finish"}), _findings(place, job, [0, 1], watched, since, how="destroy"))


def cut_for_good(place: Place) -> list[Finding]:
    """The link goes down in the middle, and both ranks give up."""
    with _two_hosts() as hosts, _connected(place, 2, hosts) as job:
        job.ask({"do": "flood"})
        hosts[1].ip("link", "set", _INTERFACE, "down")
        since = time.monotonic()
        return _findings(place, job, [0, 1], job.ask({"do": "watch", "seconds": _SILENCE_SECONDS}), since)


def rejected(place: Place) -> list[Finding]:
    """In the middle, a firewall begins to reject both directions with resets."""
    rule = (
        "table inet rejects { chain in { type filter hook input priority 0;\n"
        f'tcp flags & rst == rst accept\niifname "{_INTERFACE}" meta l4proto tcp reject with tcp reset\n}}\n}}\n'
    )
    with _two_hosts() as hosts, _connected(place, 2, hosts) as job:
        job.ask({"do": "flood"})
        since = time.monotonic()
        try:
            for host in hosts:
                host.nft(rule)
        except netns.CommandFailed as error:
            netns.needs("reset connections", error)
        return _findings(place, job, [0, 1], job.ask({"do": "watch", "seconds": place.error_seconds}), since)


#: All, each with a name for the table.
FAULTS: dict[str, Callable[[Place], list[Finding]]] = {
    "a rank is killed in the middle": killed,
    "one rank of four is killed": killed_of_four,
    "a rank is stopped, then goes on": stopped,
    "a rank is stopped, the other aborts": stopped_for_good,
    "a rank aborts in the middle": aborts,
    "a rank makes no call, later does": does_not_call,
    "the ranks' calls differ in size": calls_differ,
    "a rank never comes to the init": missing,
    "a rank is killed in the init": killed_while_connecting,
    "the link is down, then up": cut,
    "the link is down, both abort": cut_for_good,
    "a firewall resets the connections": rejected,
}
