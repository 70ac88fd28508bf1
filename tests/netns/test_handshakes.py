# SPDX-License-Identifier: MIT
"""A connection that is being made on a network that fails meanwhile."""

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
