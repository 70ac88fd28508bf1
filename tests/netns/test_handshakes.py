# SPDX-License-Identifier: MIT
"""A connection that is being made on a network that fails meanwhile, or lets no more streams through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.netns.steps import LARGE, LONG, cut, ends, listen, meet, pass_one

pytestmark = pytest.mark.gate


def test_a_lost_welcome_is_asked_for_again(tmp_path: Path) -> None:
    """The receiver's answer to the first HELLO is answered with a reset. The sender's kernel finds that out."""
    with ends(tmp_path, LONG, repair=True) as (sender, receiver):
        handle = listen(receiver)
        first = "meta length > 80 numgen inc mod 1000000 == 0"
        cut(sender.host, f"tcp flags & syn == 0 {first}", "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        meet(sender, receiver)
        pass_one(sender, receiver, 1, LARGE)
        assert "broke" not in sender.log() + receiver.log()


def test_a_link_that_goes_down_late(tmp_path: Path) -> None:
    """It comes up again. That the connection had been refused for longer than it waits for a route does not matter."""
    with ends(tmp_path) as (sender, receiver):
        handle = listen(receiver)
        cut(receiver.host, "tcp flags & syn != 0 counter", "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        sender.until(lambda: receiver.host.packets("cut") > 15)  # each after a longer pause: eight seconds
        sender.host.ip("link", "set", "link0", "down")
        sender.await_log("Network is unreachable")
        sender.host.ip("link", "set", "link0", "up")
        cut(receiver.host, "tcp dport 1", "accept")
        meet(sender, receiver)


def test_streams_that_a_firewall_does_not_let_through_are_told(tmp_path: Path) -> None:
    """Without NCCL_DEBUG, and the connection goes on with those that it has."""
    with ends(tmp_path, LONG, streams=4, settings={"BAGUA_NET_CONNECT_TIMEOUT": 9}) as (sender, receiver):
        handle = listen(receiver)
        further = "tcp flags & syn != 0 numgen inc mod 1000000 > 0"
        cut(receiver.host, further, "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        meet(sender, receiver)
        told = "NET/BaguaNet: 1 instead of 4 streams to 10.77.0.2"  # on stderr, past the logger
        sender.until(lambda: any(line.startswith(told) for line in sender.log().splitlines()))
        pass_one(sender, receiver, 1, LARGE)
