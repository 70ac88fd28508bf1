# SPDX-License-Identifier: MIT
"""Streams that die, hosts that fall silent and peers that pause: an error on both sides for the first two, none for the
last. Repair is off; test_repairs.py has it on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.netns.steps import (
    LARGE,
    LONG,
    REMOTE_ERROR,
    SHORT,
    SMALL,
    End,
    connected,
    cut,
    fails,
    send_into_the_kernel,
)
from tests.support.tiers import variants

pytestmark = pytest.mark.gate


def test_a_reset_on_the_sender_s_side_only(tmp_path: Path) -> None:
    """The sender's requests are all done, and it makes no further call."""
    with connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        send_into_the_kernel(sender)
        cut(receiver.host, "ip protocol tcp", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "bytes that were sent had arrived")
        fails(receiver, 1)


def test_one_of_several_streams_dies_on_the_sender_s_side(tmp_path: Path) -> None:
    """Its siblings tell the receiver, long before the keepalive's time."""
    with connected(tmp_path, LONG, streams=4) as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        port = max(sender.sockets())
        cut(receiver.host, f"tcp sport {port}", ways=("input",))
        assert sender.ask(f"post {LARGE}") == "posted 1"
        receiver.tell("wait 1")
        assert sender.ask("wait 1") == "done"
        sender.until(lambda: [each for each, missing in sender.sockets().items() if missing] == [port])
        cut(receiver.host, f"tcp sport {port}", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "bytes that were sent had arrived")
        assert receiver.answer() == f"error {REMOTE_ERROR}"


def test_a_partition(tmp_path: Path) -> None:
    """The sender has bytes in its kernel, the receiver waits for them. Neither host hears of the other again."""
    with connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        send_into_the_kernel(sender)
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "BAGUA_NET_KEEPALIVE")
        fails(receiver, 1)


@pytest.mark.nightly
def test_a_partition_while_sends_are_outstanding(tmp_path: Path) -> None:
    with connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        cut(receiver.host)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        fails(sender, 1)
        fails(receiver, 1)


def test_a_partition_while_nothing_is_sent(tmp_path: Path) -> None:
    with connected(tmp_path) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        fails(receiver, 1)
        sender.until(lambda: not sender.sockets())
        assert sender.ask(f"post {SMALL}") == "posted 1"
        fails(sender, 1)


def _shut_window(sender: End, receiver: End) -> None:
    """The receiver's process stops, and the sender's message 1 fills all buffers between the two."""
    os.kill(receiver.pid(), signal.SIGSTOP)
    assert sender.ask(f"post {LARGE}") == "posted 1"
    sender.tell("wait 1")
    sender.until(lambda: "timer:(persist" in sender.host.socket_details())


@pytest.mark.parametrize("peer_seconds", variants(0, nightly=[SHORT]), ids=["only the sender probes", "both probe"])
def test_a_stopped_receiver_goes_on(tmp_path: Path, peer_seconds: int) -> None:
    """It is stopped for several times the keepalive's time while its window is shut."""
    with connected(tmp_path, peer_seconds=peer_seconds, rcvbuf="64K") as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        _shut_window(sender, receiver)
        time.sleep(4 * SHORT)  # the pause itself: nothing happens in it
        os.kill(receiver.pid(), signal.SIGCONT)
        assert receiver.ask("wait 1") == "done"
        assert sender.answer() == "done"
        assert "broke" not in sender.log() + receiver.log()


@pytest.mark.nightly
def test_a_partition_behind_a_shut_window(tmp_path: Path) -> None:
    """The kernel's own probes of the window are far apart by then."""
    with connected(tmp_path, rcvbuf="64K") as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        _shut_window(sender, receiver)
        time.sleep(2 * SHORT)
        cut(receiver.host)
        assert sender.answer() == f"error {REMOTE_ERROR}"
        os.kill(receiver.pid(), signal.SIGCONT)
        fails(receiver, 1)


@pytest.mark.nightly
def test_without_a_limit_a_partition_ends(tmp_path: Path) -> None:
    """Of several times the limit that others have."""
    with connected(tmp_path, 0) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        send_into_the_kernel(sender)
        time.sleep(2 * SHORT)
        receiver.host.nft("delete table inet cut\n")
        assert receiver.ask("wait 1") == "done"
