# SPDX-License-Identifier: MIT
"""Streams that die, hosts that fall silent and peers that pause: an error on both sides for the first two, none for the
last.

Each test drives one connection between two hosts step by step (tests/drivers/drive_steps.c) and changes the network
between the steps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_DEADLINE = 60
_POLL_S = 0.02
#: BAGUA_NET_KEEPALIVE where the test waits for it, and where it must not be what ends the connection.
_SHORT, _LONG = 3, 240
_SMALL, _LARGE = 1000, 8_000_000
_REMOTE_ERROR = 6


@dataclass(frozen=True)
class _End:
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

    def log(self) -> str:
        return self.file.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """The rank ends at its deadline."""
        while not condition():
            assert self.process.poll() is None, f"a rank ended\n{self.log()}"
            time.sleep(_POLL_S)

    def await_log(self, *texts: str) -> None:
        """Until one line has all of them."""
        self.until(lambda: any(all(text in line for text in texts) for line in self.log().splitlines()))

    def peer(self) -> str:
        return _ADDRESSES[1 if self.sends else 0]

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
def _end(host: Host, sends: bool, directory: Path, settings: Mapping[str, object]) -> Iterator[_End]:
    built = drivers.build()
    file = directory / f"{host.name}.log"
    variables = {"NCCL_SOCKET_IFNAME": "link0", **{name: str(value) for name, value in settings.items()}}
    command = [*host.prefix, str(built.drive_steps), "--lib", str(built.library), "--deadline", str(_DEADLINE)]
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
            yield _End(host, sends, process, file)
        finally:
            process.kill()


Ends = tuple[_End, _End]


@contextlib.contextmanager
def _connected(
    directory: Path,
    seconds: int = _SHORT,
    peer_seconds: int | None = None,
    streams: int = 1,
    rcvbuf: str = "0",
    repair: bool = False,
) -> Iterator[Ends]:
    """A sender and a receiver; one message has arrived, and is acknowledged."""
    common: dict[str, object] = {"BAGUA_NET_MIN_NSTREAMS": streams, "BAGUA_NET_NSTREAMS": streams}
    common["BAGUA_NET_REPAIR"] = int(repair)
    ours = common | {"BAGUA_NET_KEEPALIVE": seconds}
    theirs = common | {"BAGUA_NET_KEEPALIVE": seconds if peer_seconds is None else peer_seconds}
    with netns.two_hosts() as hosts:
        for host, address in zip(hosts, _ADDRESSES, strict=True):
            host.ip("address", "add", f"{address}/24", "dev", "link0")
        with (
            _end(hosts[0], True, directory, ours) as sender,
            _end(hosts[1], False, directory, theirs | {"BAGUA_NET_RCVBUF": rcvbuf}) as receiver,
        ):
            handle = receiver.ask("listen").removeprefix("handle ")
            assert sender.ask(f"connect {handle}") == "ok"
            assert receiver.ask("accept") == "ok"
            assert sender.ask(f"post {_SMALL}") == receiver.ask(f"post {_SMALL}") == "posted 0"
            assert sender.ask("wait 0") == receiver.ask("wait 0") == "done"
            sender.until(lambda: list(sender.sockets().values()) == [0] * streams)
            yield sender, receiver


def _cut(host: Host, match: str = "", verdict: str = "drop", ways: tuple[str, ...] = ("input", "output")) -> None:
    """TCP packets of this host that match."""
    chains = "\n".join(
        f"chain {way} {{ type filter hook {way} priority 0;\nmeta l4proto tcp {match} {verdict}\n}}" for way in ways
    )
    host.nft(f"table inet cut\ndelete table inet cut\ntable inet cut {{\n{chains}\n}}\n")


def _fails(end: _End, message: int) -> None:
    """With a line that names the peer, from whichever thread saw it."""
    assert end.ask(f"wait {message}") == f"error {_REMOTE_ERROR}"
    end.await_log("WARN", f"the connection {'to' if end.sends else 'from'} {end.peer()}:", "broke")


def _send_into_the_kernel(sender: _End) -> None:
    """Message 1. It is done although nothing of it has arrived."""
    assert sender.ask(f"post {_SMALL}") == "posted 1"
    assert sender.ask("wait 1") == "done"


def test_a_reset_on_the_sender_s_side_only(tmp_path: Path) -> None:
    """The sender's requests are all done, and it makes no further call."""
    with _connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        _send_into_the_kernel(sender)
        _cut(receiver.host, "ip protocol tcp", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "bytes that were sent had arrived")
        _fails(receiver, 1)


def test_one_of_several_streams_dies_on_the_sender_s_side(tmp_path: Path) -> None:
    """Its siblings tell the receiver, long before the keepalive's time."""
    with _connected(tmp_path, _LONG, streams=4) as (sender, receiver):
        assert receiver.ask(f"post {_LARGE}") == "posted 1"
        port = max(sender.sockets())
        _cut(receiver.host, f"tcp sport {port}", ways=("input",))
        assert sender.ask(f"post {_LARGE}") == "posted 1"
        receiver.tell("wait 1")
        assert sender.ask("wait 1") == "done"
        sender.until(lambda: [each for each, missing in sender.sockets().items() if missing] == [port])
        _cut(receiver.host, f"tcp sport {port}", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "bytes that were sent had arrived")
        assert receiver.answer() == f"error {_REMOTE_ERROR}"


def test_a_stream_that_dies_on_the_sender_s_side_is_repaired(tmp_path: Path) -> None:
    """The sender's requests are all done. What the stream has lost comes on another one."""
    with _connected(tmp_path, _LONG, streams=4, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {_LARGE}") == "posted 1"
        port = max(sender.sockets())
        _cut(receiver.host, f"tcp sport {port}", ways=("input",))
        assert sender.ask(f"post {_LARGE}") == "posted 1"
        receiver.tell("wait 1")
        assert sender.ask("wait 1") == "done"
        sender.until(lambda: [each for each, missing in sender.sockets().items() if missing] == [port])
        _cut(receiver.host, f"tcp sport {port}", "reject with tcp reset", ("input",))
        assert receiver.answer() == "done"
        assert "nothing is lost" in sender.log()
        assert "WARN" not in sender.log() + receiver.log()


def test_a_repair_that_is_refused_is_an_error_on_both_sides(tmp_path: Path) -> None:
    """To the sender it looks as if nothing listened any more; the receiver hears nothing."""
    with _connected(tmp_path, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        _send_into_the_kernel(sender)
        _cut(receiver.host, "ip protocol tcp", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "another stream did not come up")
        _fails(receiver, 1)


@pytest.mark.parametrize("idle", [True, False])
def test_a_partition_ends_a_repair(tmp_path: Path, idle: bool) -> None:
    with _connected(tmp_path, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        if not idle:
            _send_into_the_kernel(sender)
        _fails(receiver, 1)
        if idle:
            sender.until(lambda: not sender.sockets())
            assert sender.ask(f"post {_SMALL}") == "posted 1"
        sender.await_log("WARN", f"to {sender.peer()}:", "broke")


def _pass_one(sender: _End, receiver: _End, message: int, size: int) -> None:
    assert receiver.ask(f"post {size}") == sender.ask(f"post {size}") == f"posted {message}"
    assert sender.ask(f"wait {message}") == receiver.ask(f"wait {message}") == "done"


def test_idle_streams_that_are_reset_are_replaced(tmp_path: Path) -> None:
    """As by a middlebox that has forgotten them: it answers the probes of the sender's kernel. The receiver learns of
    it when the sender has closed them."""
    streams = 4
    with _connected(tmp_path, streams=streams) as (sender, receiver):
        message = 0
        for choose in (min, max):
            kept = choose(sender.sockets())
            idle = [port for port in sender.sockets() if port != kept]
            ports = ", ".join(str(port) for port in idle)
            _cut(receiver.host, f"tcp sport {{ {ports} }}", "reject with tcp reset", ("input",))
            sender.until(lambda: len(sender.sockets()) == 1)
            receiver.host.nft("delete table inet cut\n")
            _pass_one(sender, receiver, message := message + 1, _LARGE)
            while len(sender.sockets()) < streams:  # streams are opened while something moves
                _pass_one(sender, receiver, message := message + 1, _SMALL)
                time.sleep(_POLL_S)
        receiver.until(lambda: sorted(receiver.sockets()) == sorted(sender.sockets()))
        assert "broke" not in sender.log() + receiver.log()


def test_a_partition(tmp_path: Path) -> None:
    """The sender has bytes in its kernel, the receiver waits for them. Neither host hears of the other again."""
    with _connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        _send_into_the_kernel(sender)
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "BAGUA_NET_KEEPALIVE")
        _fails(receiver, 1)


@pytest.mark.nightly
def test_a_partition_while_sends_are_outstanding(tmp_path: Path) -> None:
    with _connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {_LARGE}") == "posted 1"
        _cut(receiver.host)
        assert sender.ask(f"post {_LARGE}") == "posted 1"
        _fails(sender, 1)
        _fails(receiver, 1)


def test_a_partition_while_nothing_is_sent(tmp_path: Path) -> None:
    with _connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        _fails(receiver, 1)
        sender.until(lambda: not sender.sockets())
        assert sender.ask(f"post {_SMALL}") == "posted 1"
        _fails(sender, 1)


def _shut_window(sender: _End, receiver: _End) -> None:
    """The receiver's process stops, and the sender's message 1 fills all buffers between the two."""
    os.kill(receiver.pid(), signal.SIGSTOP)
    assert sender.ask(f"post {_LARGE}") == "posted 1"
    sender.tell("wait 1")
    sender.until(lambda: "timer:(persist" in sender.host.socket_details())


@pytest.mark.parametrize("peer_seconds", variants(0, nightly=[_SHORT]), ids=["only the sender probes", "both probe"])
def test_a_stopped_receiver_goes_on(tmp_path: Path, peer_seconds: int) -> None:
    """It is stopped for several times the keepalive's time while its window is shut."""
    with _connected(tmp_path, peer_seconds=peer_seconds, rcvbuf="64K") as (sender, receiver):
        assert receiver.ask(f"post {_LARGE}") == "posted 1"
        _shut_window(sender, receiver)
        time.sleep(4 * _SHORT)  # the pause itself: nothing happens in it
        os.kill(receiver.pid(), signal.SIGCONT)
        assert receiver.ask("wait 1") == "done"
        assert sender.answer() == "done"
        assert "broke" not in sender.log() + receiver.log()


@pytest.mark.nightly
def test_a_partition_behind_a_shut_window(tmp_path: Path) -> None:
    """The kernel's own probes of the window are far apart by then."""
    with _connected(tmp_path, rcvbuf="64K") as (sender, receiver):
        assert receiver.ask(f"post {_LARGE}") == "posted 1"
        _shut_window(sender, receiver)
        time.sleep(2 * _SHORT)
        _cut(receiver.host)
        assert sender.answer() == f"error {_REMOTE_ERROR}"
        os.kill(receiver.pid(), signal.SIGCONT)
        _fails(receiver, 1)


@pytest.mark.nightly
def test_without_a_limit_a_partition_ends(tmp_path: Path) -> None:
    """Of several times the limit that others have."""
    with _connected(tmp_path, 0) as (sender, receiver):
        assert receiver.ask(f"post {_SMALL}") == "posted 1"
        _cut(receiver.host)
        _send_into_the_kernel(sender)
        time.sleep(2 * _SHORT)
        receiver.host.nft("delete table inet cut\n")
        assert receiver.ask("wait 1") == "done"
