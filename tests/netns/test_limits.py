# SPDX-License-Identifier: MIT
"""What `bagua-net top` and `explain` say of a sender, where the test knows what holds it back: the one cause, and none
beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bagua_net._stats import causes, files, limits
from bagua_net._stats.files import Snapshot
from tests.netns.steps import ADDRESSES, LARGE, LONG, End, connected, cut, pass_one
from tests.support import netns
from tests.support.netns import Host

pytestmark = [pytest.mark.gate, pytest.mark.alone]

_PATIENCE_S = 40
_WINDOW_S = 1.5
_MBIT = 100
#: Messages that take longer than the test's patience, or are killed with it.
_WHILE_IT_SENDS = 60
#: A program that takes what comes, and one that sends without a pause.
_SINK = """
import socket
listener = socket.create_server(("", 5000))
print("listens", flush=True)
taker = listener.accept()[0]
while taker.recv(1 << 20):
    pass
"""
_SOURCE = """
import socket, sys
sender = socket.create_connection((sys.argv[1], 5000))
while True:
    sender.sendall(bytes(1 << 20))
"""


def _snapshot(directory: Path, pid: int) -> Snapshot | None:
    found = files.read_all(directory / f"bagua-net-stats-{os.geteuid()}")
    return next((each for each in found if each.process["pid"] == pid), None)


def _words(before: Snapshot, now: Snapshot) -> list[str]:
    """The causes of what the process sends, as ``explain`` finds them."""
    rates = limits.rates(now, before)
    together = sum(rate.bytes_per_second for rate in rates if rate.sender)
    found = [causes.of(rate, causes.Surroundings(rates, together)) for rate in rates if rate.sender]
    return [cause.word for cause in found if cause is not None]


def _await_cause(directory: Path, sender: End, word: str, do: Callable[[], None]) -> None:
    """Until two windows in a row have it. ``do`` is repeated meanwhile."""
    end = time.monotonic() + _PATIENCE_S
    seen: list[str] = []
    while time.monotonic() < end:
        before, until = _snapshot(directory, sender.pid()), time.monotonic() + _WINDOW_S
        while time.monotonic() < until:
            do()
        now = _snapshot(directory, sender.pid())
        if before is not None and now is not None:
            seen += _words(before, now)
        if seen[-2:] == [word, word]:
            return
    pytest.fail(f"{seen}, and not {word}")


def _send_all(sender: End, receiver: End, messages: int, size: int) -> None:
    """They are posted at both ends, and under way."""
    for number in range(1, messages + 1):
        assert receiver.ask(f"post {size}") == sender.ask(f"post {size}") == f"posted {number}"
    sender.tell(f"wait {messages}")
    receiver.tell(f"wait {messages}")


@contextlib.contextmanager
def _other_traffic(source: Host, sink: Host) -> Iterator[None]:
    """Another program's, on one TCP connection."""
    python = [sys.executable, "-c"]
    with contextlib.ExitStack() as stack:
        taker = stack.enter_context(subprocess.Popen([*sink.prefix, *python, _SINK], stdout=subprocess.PIPE, text=True))
        stack.callback(taker.kill)
        assert taker.stdout
        assert taker.stdout.readline() == "listens\n"
        sender = stack.enter_context(subprocess.Popen([*source.prefix, *python, _SOURCE, ADDRESSES[1]]))
        stack.callback(sender.kill)
        yield


def _pause() -> None:
    time.sleep(0.05)


def test_a_link_that_is_full_is_the_network(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        try:
            sender.host.cap_link("link0", _MBIT)
        except netns.CommandFailed as error:
            netns.needs("cap a link", error)
        _send_all(sender, receiver, 60, LARGE)  # 0.6 s each
        _await_cause(tmp_path, sender, limits.NETWORK, _pause)


def test_pauses_between_messages_are_the_application_s(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        number = iter(range(1, 1000))

        def one() -> None:
            pass_one(sender, receiver, next(number), LARGE)
            time.sleep(0.2)

        _await_cause(tmp_path, sender, limits.APPLICATION, one)


def test_a_receiver_that_posts_late_is_the_receiver(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        for number in range(1, 61):
            assert sender.ask(f"post {LARGE // 2}") == f"posted {number}"
        sender.tell("wait 60")
        posts = iter(range(1, 61))  # 0.3 s each

        def one() -> None:
            for number in itertools.islice(posts, 1):  # none are left where the cause does not show
                assert receiver.ask(f"post {LARGE // 2}") == f"posted {number}"
                assert receiver.ask(f"wait {number}") == "done"
            time.sleep(0.3)

        _await_cause(tmp_path, sender, limits.RECEIVER, one)


def test_a_receiver_that_does_not_post_stands_still(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        _await_cause(tmp_path, sender, limits.STILL, _pause)
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        assert receiver.ask("wait 1") == sender.answer() == "done"


def test_a_host_that_is_gone_is_silent(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        cut(receiver.host)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        _await_cause(tmp_path, sender, causes.HOST_SILENT, _pause)


def test_a_limit_for_each_flow(tmp_path: Path) -> None:
    settings = {"BAGUA_NET_MIN_NSTREAMS": 1, "BAGUA_NET_NSTREAMS": 4, "BAGUA_NET_PATH_MEMORY": 0}
    with connected(tmp_path, seconds=LONG, stats=tmp_path, settings=settings) as (sender, receiver):
        try:
            sender.host.cap_flows("link0", [_MBIT] * 64, seed=1)
        except netns.CommandFailed as error:
            netns.needs("cap flows", error)
        _send_all(sender, receiver, _WHILE_IT_SENDS, 2 * LARGE)
        _await_cause(tmp_path, sender, causes.FLOW_LIMIT, _pause)


def test_a_path_that_loses_packets(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        receiver.host.drop_received(100)
        _send_all(sender, receiver, _WHILE_IT_SENDS, 3 * LARGE)
        _await_cause(tmp_path, sender, causes.LOSSES, _pause)


def test_a_link_that_others_share(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        try:
            sender.host.cap_link("link0", _MBIT)
        except netns.CommandFailed as error:
            netns.needs("cap a link", error)
        with _other_traffic(sender.host, receiver.host):
            _send_all(sender, receiver, _WHILE_IT_SENDS, LARGE)
            _await_cause(tmp_path, sender, causes.SHARED_LINK, _pause)


def test_a_process_that_gets_no_processor_is_the_processor(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        _send_all(sender, receiver, _WHILE_IT_SENDS, 2 * LARGE)

        def in_slices() -> None:
            os.kill(sender.pid(), signal.SIGSTOP)
            time.sleep(0.05)
            os.kill(sender.pid(), signal.SIGCONT)
            time.sleep(0.001)

        _await_cause(tmp_path, sender, limits.PROCESSOR, in_slices)
