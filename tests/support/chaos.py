# SPDX-License-Identifier: MIT
"""A network that misbehaves, in an order that a seed chooses: streams are reset on one side, links are cut or go down,
ranks stop, rates change.

    with chaos.going_on(hosts, 2, seed, chaos.Plan(kinds=("resets", "cuts"))) as log:
        ...                        # traffic, until it is over
    print(log.resets)

What happens is the seed's; which packet it meets is not.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.netns import CommandFailed, Host

KINDS = ("resets", "cuts", "links", "stops", "rates")
_LINK = "link0"
#: Twice in a row this is less than a connection that is being made waits for a route.
_LINK_SECONDS = 2.0


@dataclass(frozen=True)
class Plan:
    kinds: Sequence[str] = KINDS
    #: Of one thing, in seconds.
    longest: float = 3.0
    #: Those of the connections that packets are lost and reset of; of all by default.
    ports: str = "0-65535"


@dataclass
class Log:
    """What was done."""

    resets: int = 0
    done: list[str] = field(default_factory=list)


class _Chaos:
    def __init__(self, hosts: Sequence[Host], ranks: int, seed: int, plan: Plan) -> None:
        self.log = Log()
        self._hosts = hosts
        self._ranks = ranks
        self._random = random.Random(seed)
        self._plan = plan
        self._over = threading.Event()

    def run(self) -> None:
        """One thing after another, with pauses, until it is over."""
        acts: dict[str, Callable[[Host, float], None]] = {
            "resets": self._resets,
            "cuts": self._cut,
            "links": self._link,
            "stops": self._stop,
            "rates": self._rate,
        }
        while not self._over.is_set():
            kind, host = self._random.choice(self._plan.kinds), self._random.choice(self._hosts)
            seconds = self._random.uniform(0.2, self._plan.longest)
            self.log.done.append(f"{kind} at {host.name[-1]} for {seconds:.1f} s")
            acts[kind](host, seconds)
            self._over.wait(self._random.uniform(0, 0.5))

    def end(self) -> None:
        self._over.set()

    @contextlib.contextmanager
    def _rules(self, host: Host, hook: str, rule: str) -> Iterator[None]:
        rules = "\n".join(f"tcp {end} {self._plan.ports} {rule}" for end in ("sport", "dport"))
        host.nft(f"table inet chaos {{ chain c {{ type filter hook {hook} priority 0;\n{rules}\n}}\n}}\n")
        try:
            yield
        finally:
            self.log.resets += host.packets("chaos") if "reset" in rule else 0
            host.nft("delete table inet chaos\n")

    def _resets(self, host: Host, seconds: float) -> None:
        """Some packets of one direction are answered with a reset: their sender hears it, the other end does not."""
        hook, every = self._random.choice(("input", "output")), self._random.choice((100, 1000, 3000))
        chosen = f"tcp flags & syn == 0 numgen inc mod {every} == {every - 1}"
        with self._rules(host, hook, f"{chosen} counter reject with tcp reset"):
            self._over.wait(seconds)

    def _cut(self, host: Host, seconds: float) -> None:
        """Nothing passes."""
        with self._rules(host, "input", "counter drop"):
            self._over.wait(seconds)

    def _link(self, host: Host, seconds: float) -> None:
        """The interface goes down: its routes are gone. A rank that starts then finds none to use."""
        if sum(each.listeners() for each in self._hosts) < self._ranks:
            return
        host.ip("link", "set", _LINK, "down")
        self._over.wait(min(seconds, _LINK_SECONDS))
        host.ip("link", "set", _LINK, "up")
        while not all(each.is_up(_LINK) for each in self._hosts):  # the kernel takes up to a second
            time.sleep(0.01)

    def _stop(self, host: Host, seconds: float) -> None:
        pids = host.processes()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self._over.wait(seconds)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _rate(self, host: Host, seconds: float) -> None:
        """A slow link, whose queue drops."""
        mbit = self._random.choice((20, 100, 1000))
        with contextlib.suppress(CommandFailed):
            host.cap_link(_LINK, mbit)
        self._over.wait(seconds)
        with contextlib.suppress(CommandFailed):
            host.tc("qdisc", "del", "dev", _LINK, "root")


@contextlib.contextmanager
def going_on(hosts: Sequence[Host], ranks: int, seed: int, plan: Plan = Plan()) -> Iterator[Log]:
    """Until the block ends; then the network is whole.

    Args:
        ranks: as many as take part, each of which listens.
    """
    chaos = _Chaos(hosts, ranks, seed, plan)
    thread = threading.Thread(target=chaos.run)
    thread.start()
    try:
        yield chaos.log
    finally:
        chaos.end()
        thread.join()
