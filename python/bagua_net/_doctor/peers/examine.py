# SPDX-License-Identifier: MIT
"""What the doctor asks of hosts, in order: each of itself, each of the others, then for flows, then for a job."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

from ..check import Check, Checks
from . import facts, verdicts
from .facts import Facts, Listening, Reach
from .job import Job
from .link import Hosts, PeerLost, Reply, Request
from .probe import ANSWER_S, MOST, Answer, Passage, Rate, Way
from .verdicts import Measured

#: Seconds: NCCL is asked for its version, and libraries load.
_FACTS_S = 120.0
_SHORT_S = 30.0
_FLOWS = (1, 2, 4, 8)
_MEASURE_S = 0.5
#: Before that, a flow's window doubles in each round trip: 15 of them open one of 400 MB.
_WARM_S, _WARM_ROUNDS, _MOST_WARM_S = 0.2, 15, 4.0
#: Bytes of data of a packet: what is left by jumbo frames, Ethernet, VXLAN over it, IPsec, WireGuard, and by the least
#: that IPv6 and IPv4 promise.
_SIZES = (8900, 4000, 1460, 1410, 1360, 1300, 1220, 1000, 536)

#: By an interface's address and the one that it sends to.
_Rates = dict[tuple[str, str], list[Measured]]


class _Examination:
    def __init__(self, hosts: Hosts, say: Callable[[str], None], *, rates: bool, job: bool) -> None:
        self._hosts = hosts
        self._measures = rates
        self._runs_job = job
        self._say = say
        self._token = secrets.token_hex(16)
        self._facts: dict[int, Facts] = {}
        self._listening: dict[int, Listening] = {}
        #: those that have an NCCL for the job
        self._ranks: list[int] = []

    # ---- requests ----

    def _name(self, number: int) -> str:
        known = self._facts.get(number)
        return known.name if known is not None else self._hosts.names[number] or f"rank {number}"

    def _ask(self, requests: dict[int, Request], seconds: float) -> dict[int, Reply]:
        """Raises PeerLost where one has no answer."""
        replies = self._hosts.ask(requests, seconds)
        for number, reply in replies.items():
            if problem := reply.get("lost") or reply.get("error"):
                raise PeerLost(f"{self._name(number)}: {problem}")
        return replies

    def _ask_one(self, number: int, request: Request, seconds: float = _SHORT_S) -> Reply:
        return self._ask({number: request}, seconds)[number]

    # ---- steps ----

    def run(self) -> Checks:
        self._say("each host of itself")
        yield from self._meet()
        if len(self._facts) < 2:
            yield from verdicts.own(list(self._facts.values()))
            return
        if self._runs_job:
            yield from self._choose_nccl()
        hosts = list(self._facts.values())
        yield from verdicts.own(hosts)
        yield from verdicts.agreement(hosts)
        yield from self._clocks()
        self._say("each host of the others")
        self._listen()
        reaches = self._look()
        for (one, other), reach in reaches.items():
            yield from verdicts.reachable(reach, reaches[other, one])
            yield from self._beside(one, other, reach)
        yield from verdicts.names(self._facts, reaches)
        yield from self._between(reaches)
        if len(self._ranks) > 1:
            self._say("NCCL between them")
            yield from Job(self._hosts, {number: self._facts[number] for number in self._ranks}).run()

    def _meet(self) -> Checks:
        """Without those that do not answer, and without second names of one host."""
        replies = self._hosts.ask({number: {"do": "facts"} for number in range(len(self._hosts.names))}, _FACTS_S)
        called = [given or replies[at].get("host", "") for at, given in enumerate(self._hosts.names)]
        for at, reply in replies.items():
            name = f"{called[at]} ({at})" if called.count(called[at]) > 1 else called[at]
            if problem := reply.get("lost") or reply.get("error"):
                fact, _, fix = str(problem).partition("; ")
                yield Check(name or f"rank {at}", "fail", fact, fix or f"try {self._hosts.how(at)}")
            else:
                self._facts[at] = facts.of(name, reply)
        yield from self._once()

    def _once(self) -> Checks:
        """A host that has two names is examined by the first one, unless it is all that there is."""
        first: dict[str, Facts] = {}
        again = [at for at, host in self._facts.items() if first.setdefault(host.place, host) is not host]
        for at in again if len(first) > 1 else []:
            host = self._facts.pop(at)
            yield Check(host.name, "ok", f"it is {first[host.place].name}")

    def _choose_nccl(self) -> Checks:
        """From here on a host's NCCL is the one that its rank will use."""
        requests: dict[int, Request] = {number: {"do": "nccl"} for number in self._facts}
        for number, reply in self._ask(requests, _FACTS_S).items():
            host = self._facts[number]
            if reply["problem"]:
                yield verdicts.no_nccl(host, reply["problem"])
            else:
                self._facts[number] = replace(host, nccl=reply["nccl"])
                self._ranks.append(number)

    def _clocks(self) -> Checks:
        (_, first), *others = self._facts.items()
        ahead = []
        for number, host in others:
            began = time.time()
            there = self._ask_one(number, {"do": "clock"})["time"]
            took = time.time() - began
            ahead.append((host, there - began - took / 2, took / 2))
        yield from verdicts.clocks(first, ahead)

    def _listen(self) -> None:
        requests: dict[int, Request] = {
            number: {
                "do": "listen",
                "token": self._token,
                "addresses": [nic.address for nic in host.nics],
                "ports": host.ports,
            }
            for number, host in self._facts.items()
        }
        for number, reply in self._ask(requests, _SHORT_S).items():
            self._listening[number] = Listening(**reply)

    def _looks(self, listeners: Iterable[tuple[Listening, dict[str, int]]]) -> Request:
        """To look at these listeners' ports."""
        hosts = [{"name": each.name, "place": each.place, "ports": ports} for each, ports in listeners]
        return {"do": "look", "token": self._token, "hosts": hosts}

    def _look(self) -> dict[tuple[int, int], Reach]:
        """From each to all others, all at once."""
        request = self._looks((each, each.ports) for each in self._listening.values())
        addresses = sum(len(each.ports) for each in self._listening.values())
        ways = addresses * max(len(host.nics) for host in self._facts.values())
        replies = self._ask(dict.fromkeys(self._facts, request), _SHORT_S + ANSWER_S * (1 + ways // MOST))
        reaches = {}
        for one, other in itertools.permutations(self._facts, 2):
            listening = self._listening[other]
            met = facts.answers(replies[one]["answers"][listening.name])
            reaches[one, other] = Reach(self._facts[one], self._facts[other], met, listening)
        return reaches

    def _beside(self, one: int, other: int, reach: Reach) -> Checks:
        """The ports outside of the plugin's range, by the first way that is good."""
        if not reach.good or not reach.other.ports:
            return
        way, listening = reach.best[0].way, self._listening[other]
        if way.address not in listening.any:
            return
        reply = self._ask_one(one, self._looks([(listening, {way.address: listening.any[way.address]})]))
        met = facts.answers(reply["answers"][listening.name])
        yield from verdicts.bootstrap(reach, next(each for each in met if each.way.source == way.source))

    # ---- packets and flows, of one pair after another ----

    def _between(self, reaches: dict[tuple[int, int], Reach]) -> Checks:
        """Each host and the next one, both ways, in the order of a ring."""
        numbers = list(self._facts)
        for at, one in enumerate(numbers if len(numbers) > 2 else numbers[:1]):
            other = numbers[(at + 1) % len(numbers)]
            there = yield from self._paths(one, other, reaches[one, other])
            back = yield from self._paths(other, one, reaches[other, one])
            for (source, address), rates in there.items():
                if (address, source) in back:
                    yield from verdicts.unlike(reaches[one, other], rates, back[address, source])

    def _paths(self, one: int, other: int, reach: Reach) -> Generator[Check, None, _Rates]:
        """Yields its findings; returns the rates of the ways that pass."""
        rates: _Rates = {}
        for answer in reach.best:
            self._say(f"{reach.title}, {answer.way.device}")
            try:
                stopped = self._stopped(one, reach, answer)
                if stopped is not None:
                    yield stopped
                elif self._measures:
                    measured = self._rates(one, other, answer)
                    rates[answer.way.source, answer.way.address] = measured
                    yield verdicts.flows(reach, answer, measured)
            except PeerLost as error:
                fix = "a firewall that counts connections, or look at that host"
                yield Check(f"{reach.title}: {answer.way.device}", "fail", str(error), fix)
        return rates

    def _stopped(self, one: int, reach: Reach, answer: Answer) -> Check | None:
        """Where full packets do not arrive, twice: for the first time that may be anything."""
        full = self._passes(one, answer.way, 0)
        if full.passes:
            return None
        tried = (self._passes(one, answer.way, mss) for mss in _SIZES if mss < full.mss)
        smaller = next((each for each in tried if each.passes), None)
        if self._passes(one, answer.way, 0).passes:
            return None
        return verdicts.packets(reach, answer, full, smaller)

    def _passes(self, one: int, way: Way, mss: int) -> Passage:
        return Passage(**self._ask_one(one, {"do": "passes", "token": self._token, "way": way, "mss": mss}))

    def _rates(self, one: int, other: int, answer: Answer) -> list[Measured]:
        """A flow alone is measured first and last: what else uses the path may come and go."""
        alone, *more, again = (self._rate(one, other, answer, flows) for flows in (*_FLOWS, _FLOWS[0]))
        return [max(alone, again, key=lambda each: each.rate.bytes_per_second), *more]

    def _rate(self, one: int, other: int, answer: Answer, flows: int) -> Measured:
        request = {"do": "rate", "token": self._token, "way": answer.way, "flows": flows}
        warm_s = min(_MOST_WARM_S, _WARM_S + _WARM_ROUNDS * answer.seconds)
        before = self._ask_one(other, {"do": "worked"})
        rate = Rate(**self._ask_one(one, request | {"warm_s": warm_s, "seconds": _MEASURE_S}))
        after = self._ask_one(other, {"do": "worked"})
        return Measured(rate, (after["seconds"] - before["seconds"]) / max(0.001, after["clock"] - before["clock"]))


def checks(
    hosts: Hosts, say: Callable[[str], None], *, rates: bool = True, job: bool = False
) -> tuple[Callable[[], Checks], ...]:
    """The check of these hosts.

    Args:
        say: is told what is looked at next.
        rates: also fill the network between them.
        job: also run an allreduce of their own NCCL.
    """

    def check_peers() -> Checks:
        """What stands between the hosts?"""
        try:
            yield from _Examination(hosts, say, rates=rates, job=job).run()
        except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
            what = f"a host answers what this one does not understand ({error!r})"
            raise PeerLost(f"{what}; install the same bagua_net on all hosts") from error

    return (check_peers,)
