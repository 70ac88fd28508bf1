# SPDX-License-Identifier: MIT
"""One of a device's two interfaces fails while a connection uses both, and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns.steps import LARGE, LONG, End, connected, fails, pass_one
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

STREAMS = 4


def _without_carrier(host: Host) -> None:
    host.ip("link", "set", "link1", "down")


def _without_address(host: Host) -> None:
    host.ip("address", "flush", "dev", "link1")


def _back(host: Host, address: str) -> None:
    host.ip("link", "set", "link1", "up")
    host.ip("address", "replace", f"{address}/24", "dev", "link1")


def _on_second_link(sender: End) -> int:
    return sender.host.socket_details().count("10.78.0.1")


@pytest.mark.parametrize(
    ("side", "fail"),
    variants(
        ("sender", _without_carrier),
        ("receiver", _without_address),
        nightly=[("sender", _without_address), ("receiver", _without_carrier)],
    ),
    ids=["sender-carrier", "receiver-address", "sender-address", "receiver-carrier"],
)
def test_the_other_one_carries_all_until_it_is_back(tmp_path: Path, side: str, fail: Callable[[Host], None]) -> None:
    with connected(tmp_path, LONG, streams=STREAMS, repair=True, links=2) as (sender, receiver):
        assert _on_second_link(sender) == STREAMS // 2
        host, address = (sender.host, "10.78.0.1") if side == "sender" else (receiver.host, "10.78.0.2")
        fail(host)
        pass_one(sender, receiver, 1, LARGE)
        sender.until(lambda: _on_second_link(sender) == 0)
        _back(host, address)
        message = 2
        while _on_second_link(sender) < STREAMS // 2:
            pass_one(sender, receiver, message, LARGE)
            message += 1
        sender.await_log("INFO", f"a stream to {sender.peer()}:", "goes through link1", "again")
        assert "WARN" not in sender.log() + receiver.log()


def test_one_that_is_removed_is_left(tmp_path: Path) -> None:
    with connected(tmp_path, LONG, streams=STREAMS, repair=True, links=2) as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        sender.host.ip("link", "delete", "link1")
        assert sender.ask(f"post {LARGE}") == "posted 1"
        assert sender.ask("wait 1") == receiver.ask("wait 1") == "done"
        sender.until(lambda: _on_second_link(sender) == 0)
        assert "WARN" not in sender.log() + receiver.log()


def test_a_peer_that_has_ended_is_an_error_at_once(tmp_path: Path) -> None:
    """On each pair of addresses there is nobody."""
    with connected(tmp_path, LONG, streams=STREAMS, repair=True, links=2) as (sender, receiver):
        os.kill(receiver.pid(), signal.SIGKILL)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        fails(sender, 1)
