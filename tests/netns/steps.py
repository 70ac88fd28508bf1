# SPDX-License-Identifier: MIT
"""One connection between two hosts, driven step by step (tests/drivers/drive_steps.c), so that the network can change
between the steps.

    with connected(tmp_path) as (sender, receiver):
        receiver.ask("post 1000")
        cut(receiver.host)
        ...
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import drivers, netns
from tests.support.netns import Host

ADDRESSES = ("10.77.0.1", "10.77.0.2")
DEADLINE = 60
POLL_S = 0.02
#: BAGUA_NET_KEEPALIVE where the test waits for it, and where it must not be what ends the connection.
SHORT, LONG = 3, 240
SMALL, LARGE = 1000, 8_000_000
REMOTE_ERROR = 6
#: Messages of a connection.
MOST = 1000


@dataclass(frozen=True)
class End:
    """One rank: it does a step when it is told to, and nothing in between."""

    host: Host
    sends: bool
    process: subprocess.Popen[str]
    file: Path

    def tell(self, step: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(step + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, f"a rank ended\n{self.log()}"
        return line

    def ask(self, step: str) -> str:
        self.tell(step)
        return self.answer()

    def is_waiting(self) -> bool:
        """It has not answered yet."""
        assert self.process.stdout
        return not select.select([self.process.stdout.fileno()], [], [], 0)[0]

    def log(self) -> str:
        return self.file.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """The rank ends at its deadline."""
        while not condition():
            assert self.process.poll() is None, f"a rank ended\n{self.log()}"
            time.sleep(POLL_S)

    def await_log(self, *texts: str) -> None:
        """Until one line has all of them."""
        self.until(lambda: any(all(text in line for text in texts) for line in self.log().splitlines()))

    def peer(self) -> str:
        return ADDRESSES[1 if self.sends else 0]

    def pid(self) -> int:
        """Of the rank itself: what puts it into its namespace has become it."""
        return self.process.pid

    def sockets(self) -> dict[int, int]:
        """Its connected sockets: bytes that are not acknowledged, by the port on the sender's side."""
        shown = subprocess.run(
            [*self.host.prefix, "ss", "--tcp", "--numeric", "--no-header", "state", "established"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        rows = [row.split() for row in shown.splitlines()]
        mine = 2 if self.sends else 3
        return {int(row[mine].rpartition(":")[2]): int(row[1]) for row in rows}


@contextlib.contextmanager
def end_on(host: Host, sends: bool, directory: Path, settings: Mapping[str, object], deadline: int) -> Iterator[End]:
    built = drivers.build()
    file = directory / f"{host.name}.log"
    variables = {
        "NCCL_SOCKET_IFNAME": "link",
        "BAGUA_NET_BOND": "1",
        **{name: str(value) for name, value in settings.items()},
    }
    command = [*host.prefix, str(built.drive_steps), "--lib", str(built.library), "--deadline", str(deadline)]
    with (
        file.open("w") as log,
        subprocess.Popen(
            command,
            env=drivers.environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield End(host, sends, process, file)
        finally:
            process.kill()


Ends = tuple[End, End]


@contextlib.contextmanager
def ends(
    directory: Path,
    seconds: int = SHORT,
    peer_seconds: int | None = None,
    streams: int = 1,
    rcvbuf: str = "0",
    repair: bool = False,
    peer_repairs: bool = True,
    links: int = 1,
    deadline: int = DEADLINE,
    stats: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Ends]:
    """A sender and a receiver, which are not connected yet. Several links are one device. stats: the directory in which
    they show what they do. settings: further variables of both."""
    common: dict[str, object] = {"BAGUA_NET_MIN_NSTREAMS": streams, "BAGUA_NET_NSTREAMS": streams}
    common |= {"BAGUA_NET_STATS_DIR": stats} if stats else {"BAGUA_NET_STATS": 0}
    common["BAGUA_NET_REPAIR"] = int(repair)
    common |= settings or {}
    ours = common | {"BAGUA_NET_KEEPALIVE": seconds}
    if not peer_repairs:
        common = common | {"BAGUA_NET_REPAIR": 0}
    theirs = common | {"BAGUA_NET_KEEPALIVE": seconds if peer_seconds is None else peer_seconds}
    with netns.two_hosts(links) as hosts:
        for host, address in zip(hosts, ADDRESSES, strict=True):
            for link in range(links):
                address_on = address.replace("77", str(77 + link))
                host.ip("address", "add", f"{address_on}/24", "dev", f"link{link}")
        with (
            end_on(hosts[0], True, directory, ours, deadline) as sender,
            end_on(hosts[1], False, directory, theirs | {"BAGUA_NET_RCVBUF": rcvbuf}, deadline) as receiver,
        ):
            yield sender, receiver


@contextlib.contextmanager
def connected(directory: Path, seconds: int = SHORT, streams: int = 1, **options: Any) -> Iterator[Ends]:
    """The same after one message, which has arrived and is acknowledged."""
    with ends(directory, seconds, streams=streams, **options) as (sender, receiver):
        sender.tell(f"connect {listen(receiver)}")
        meet(sender, receiver)
        sender.until(lambda: list(sender.sockets().values()) == [0] * streams)
        yield sender, receiver


def listen(receiver: End) -> str:
    """Its handle."""
    return receiver.ask("listen").removeprefix("handle ")


def meet(sender: End, receiver: End) -> None:
    """The end of a connect that was begun, and the first message."""
    assert sender.answer() == "ok"
    assert receiver.ask("accept") == "ok"
    pass_one(sender, receiver, 0, SMALL)


def cut(host: Host, match: str = "", verdict: str = "drop", ways: tuple[str, ...] = ("input", "output")) -> None:
    """TCP packets of this host that match."""
    chains = "\n".join(
        f"chain {way} {{ type filter hook {way} priority 0;\nmeta l4proto tcp {match} {verdict}\n}}" for way in ways
    )
    host.nft(f"table inet cut\ndelete table inet cut\ntable inet cut {{\n{chains}\n}}\n")


def counters(end: End) -> dict[str, int]:
    """Of its process, so far."""
    words = end.ask("counters").split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def fails(end: End, message: int) -> None:
    """With a line that names the peer, from whichever thread saw it."""
    assert end.ask(f"wait {message}") == f"error {REMOTE_ERROR}"
    end.await_log("WARN", f"the connection {'to' if end.sends else 'from'} {end.peer()}:", "broke")


def send_into_the_kernel(sender: End) -> None:
    """Message 1. It is done although nothing of it has arrived."""
    assert sender.ask(f"post {SMALL}") == "posted 1"
    assert sender.ask("wait 1") == "done"


def pass_one(sender: End, receiver: End, message: int, size: int) -> None:
    assert receiver.ask(f"post {size}") == sender.ask(f"post {size}") == f"posted {message}"
    assert sender.ask(f"wait {message}") == receiver.ask(f"wait {message}") == "done"
