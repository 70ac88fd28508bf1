# SPDX-License-Identifier: MIT
"""What `bagua-net top` says of a sender, where the test knows what holds it back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bagua_net._stats import files, limits
from bagua_net._stats.files import Snapshot
from tests.netns.steps import LARGE, LONG, End, connected, pass_one
from tests.support import netns

pytestmark = [pytest.mark.gate, pytest.mark.alone]

_PATIENCE_S = 40
_WINDOW_S = 1.5
_MBIT = 100


def _snapshot(directory: Path, pid: int) -> Snapshot | None:
    found = files.read_all(directory / f"bagua-net-stats-{os.geteuid()}")
    return next((each for each in found if each.process["pid"] == pid), None)


def _await_limit(directory: Path, sender: End, limit: str, do: Callable[[], None]) -> None:
    """Until a window has it. ``do`` is repeated meanwhile."""
    end = time.monotonic() + _PATIENCE_S
    seen = []
    while time.monotonic() < end:
        before, until = _snapshot(directory, sender.pid()), time.monotonic() + _WINDOW_S
        while time.monotonic() < until:
            do()
        now = _snapshot(directory, sender.pid())
        if before is not None and now is not None:
            seen += [rate.limit for rate in limits.rates(now, before) if rate.connection["sender"]]
        if seen and seen[-1] == limit:
            return
    pytest.fail(f"{seen}, and not {limit}")


def _pause() -> None:
    time.sleep(0.05)


def test_a_link_that_is_full_is_the_network(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        try:
            sender.host.cap_link("link0", _MBIT)
        except netns.CommandFailed as error:
            netns.needs("cap a link", error)
        for number in range(1, 31):  # 0.6 s each
            assert receiver.ask(f"post {LARGE}") == sender.ask(f"post {LARGE}") == f"posted {number}"
        sender.tell("wait 30")
        receiver.tell("wait 30")
        _await_limit(tmp_path, sender, limits.NETWORK, _pause)


def test_pauses_between_messages_are_the_application_s(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        number = iter(range(1, 1000))

        def one() -> None:
            pass_one(sender, receiver, next(number), LARGE)
            time.sleep(0.2)

        _await_limit(tmp_path, sender, limits.APPLICATION, one)


def test_a_receiver_that_posts_late_is_the_receiver(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        for number in range(1, 61):
            assert sender.ask(f"post {LARGE // 2}") == f"posted {number}"
        sender.tell("wait 60")
        posts = iter(range(1, 61))  # 0.3 s each

        def one() -> None:
            number = next(posts)
            assert receiver.ask(f"post {LARGE // 2}") == f"posted {number}"
            assert receiver.ask(f"wait {number}") == "done"
            time.sleep(0.3)

        _await_limit(tmp_path, sender, limits.RECEIVER, one)


def test_a_receiver_that_does_not_post_stands_still(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG, stats=tmp_path) as (sender, receiver):
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        _await_limit(tmp_path, sender, limits.STILL, _pause)
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        assert receiver.ask("wait 1") == sender.answer() == "done"
