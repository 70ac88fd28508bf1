# SPDX-License-Identifier: MIT
"""What the doctor asks of several hosts, in order: each of itself, each of the others, and then for flows."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator

from ..check import Check, Checks
from . import facts, verdicts
from .facts import Facts, Listening, Reach
from .link import Hosts, PeerLost, Reply, Request
from .probe import ANSWER_S, Answer, Rate, Way

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


class _Examination:
    def __init__(self, hosts: Hosts, say: Callable[[str], None], *, rates: bool) -> None:
        self._hosts = hosts
        self._measures = rates
        self._say = say
        self._token = secrets.token_hex(16)
        self._facts: list[Facts] = []
        self._listening: list[Listening] = []

    # ---- requests ----

    def _ask(self, requests: dict[int, Request], seconds: float) -> dict[int, Reply]:
        replies = self._hosts.ask(requests, seconds)
        for number, reply in replies.items():
            if "error" in reply:
                name = self._facts[number].name if self._facts else self._hosts.names[number] or f"rank {number}"
                raise PeerLost(f"{name}: {reply['error']}")
        return replies

    def _ask_one(self, number: int, request: Request, seconds: float) -> Reply:
        return self._ask({number: request}, seconds)[number]

    def _ask_all(self, request: Request, seconds: float) -> list[Reply]:
        replies = self._ask(dict.fromkeys(range(len(self._hosts.names)), request), seconds)
        return [replies[number] for number in sorted(replies)]

    # ---- steps ----

    def run(self) -> Checks:
        self._say("each host of itself")
        self._facts = self._meet(self._ask_all({"do": "facts"}, _FACTS_S))
        yield from verdicts.own(self._facts)
        yield from verdicts.agreement(self._facts)
        yield from verdicts.clocks(self._facts, self._clocks())
        self._say("each host of the others")
        self._listen()
        reaches = self._look()
        for (one, other), reach in reaches.items():
            yield from verdicts.reachable(reach, reaches[other, one])
            yield from self._beside(one, reach)
        yield from verdicts.names(self._facts, reaches)
        yield from self._between(reaches)

    def _meet(self, replies: list[Reply]) -> list[Facts]:
        called = [given or reply["host"] for given, reply in zip(self._hosts.names, replies, strict=True)]
        names = [f"{name} ({at})" if called.count(name) > 1 else name for at, name in enumerate(called)]
        return [facts.of(name, reply) for name, reply in zip(names, replies, strict=True)]

    def _clocks(self) -> dict[int, tuple[float, float]]:
        ahead = {}
        for number in range(1, len(self._facts)):
            began = time.time()
            there = self._ask_one(number, {"do": "clock"}, _SHORT_S)["time"]
            took = time.time() - began
            ahead[number] = there - began - took / 2, took / 2
        return ahead

    def _listen(self) -> None:
        requests = {
            number: {
                "do": "listen",
                "token": self._token,
                "addresses": [nic.address for nic in host.nics],
                "ports": host.ports,
            }
            for number, host in enumerate(self._facts)
        }
        replies = self._ask(requests, _SHORT_S)
        self._listening = [Listening(**replies[number]) for number in sorted(replies)]

    def _look(self) -> dict[tuple[int, int], Reach]:
        """From each to all others, all at once."""
        numbers = range(len(self._facts))
        pairs = {
            one: {
                other: facts.ways(self._facts[one], self._facts[other], self._listening[other].ports)
                for other in numbers
                if other != one
            }
            for one in numbers
        }
        requests = {
            one: {"do": "look", "token": self._token, "ways": [way for ways in others.values() for way in ways]}
            for one, others in pairs.items()
        }
        replies = self._ask(requests, _SHORT_S + ANSWER_S)
        reaches = {}
        for one, others in pairs.items():
            met = iter(facts.answers(replies[one]))
            for other, ways in others.items():
                answers = [next(met) for _ in ways]
                reaches[one, other] = Reach(self._facts[one], self._facts[other], answers, self._listening[other])
        return reaches

    def _beside(self, one: int, reach: Reach) -> Checks:
        """The ports outside of the plugin's range, by the first way that is good."""
        if reach.good and reach.other.ports:
            way = reach.best[0].way
            outside = way._replace(port=reach.listening.any[way.address])
            reply = self._ask_one(one, {"do": "look", "token": self._token, "ways": [outside]}, _SHORT_S)
            yield from verdicts.bootstrap(reach, facts.answers(reply)[0])

    # ---- packets and flows, of one pair after another ----

    def _between(self, reaches: dict[tuple[int, int], Reach]) -> Checks:
        """Each host and the next one, both ways, in the order of a ring."""
        count = len(self._facts)
        for one in range(count if count > 2 else 1):
            other = (one + 1) % count
            rates = {}
            for at, to in ((one, other), (other, one)):
                rates[at] = yield from self._path(at, reaches[at, to])
            if rates[one] and rates[other]:
                yield from verdicts.unlike(reaches[one, other], rates[one], rates[other])

    def _path(self, one: int, reach: Reach) -> Generator[Check, None, list[Rate]]:
        """Yields its findings; returns the rates, by the first interface; none: nothing passes."""
        rates: list[Rate] = []
        for answer in reach.best:
            self._say(f"{reach.title}, {answer.way.device}")
            if not self._passes(one, answer.way, 0):
                largest = next(
                    (mss for mss in self._smaller(reach, answer) if self._passes(one, answer.way, mss)), None
                )
                yield verdicts.packets(reach, answer, largest)
            elif self._measures:
                measured = self._rates(one, answer)
                yield from verdicts.flows(reach, answer, measured)
                rates = rates or measured
        return rates

    @staticmethod
    def _smaller(reach: Reach, answer: Answer) -> list[int]:
        nic = reach.nic(answer)
        return [mss for mss in _SIZES if mss + nic.headers < nic.mtu]

    def _passes(self, one: int, way: Way, mss: int) -> bool:
        request = {"do": "passes", "token": self._token, "way": way, "mss": mss}
        return bool(self._ask_one(one, request, _SHORT_S)["passes"])

    def _rates(self, one: int, answer: Answer) -> list[Rate]:
        """A flow alone is measured first and last: what else uses the path may come and go."""
        alone, *more, again = (self._rate(one, answer, flows) for flows in (*_FLOWS, _FLOWS[0]))
        return [max(alone, again, key=lambda rate: rate.bytes_per_second), *more]

    def _rate(self, one: int, answer: Answer, flows: int) -> Rate:
        request = {"do": "rate", "token": self._token, "way": answer.way, "flows": flows}
        warm_s = min(_MOST_WARM_S, _WARM_S + _WARM_ROUNDS * answer.seconds)
        request |= {"warm_s": warm_s, "seconds": _MEASURE_S}
        return Rate(**self._ask_one(one, request, _SHORT_S))


def checks(hosts: Hosts, say: Callable[[str], None], *, rates: bool = True) -> tuple[Callable[[], Checks], ...]:
    """The check of these hosts.

    Args:
        say: is told what is looked at next.
        rates: also fill the network between them, for four seconds in each direction.
    """

    def check_peers() -> Checks:
        """What stands between the hosts?"""
        yield from _Examination(hosts, say, rates=rates).run()

    return (check_peers,)
