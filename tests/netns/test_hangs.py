# SPDX-License-Identifier: MIT
"""Where messages are posted and nothing moves, the log says after 20 s what is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.netns.steps import LARGE, LONG, SMALL, End, connected, cut

pytestmark = pytest.mark.gate


def _says(end: End, *texts: str) -> None:
    end.await_log("nothing has moved for 2", end.peer(), *texts, "bagua-net explain")


def test_a_rank_that_posts_no_receive(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG) as (sender, receiver):
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        _says(sender, "to", "sends that are outstanding: 1", "has not posted its receives")
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        assert receiver.ask("wait 1") == sender.answer() == "done"


@pytest.mark.nightly
def test_a_rank_that_sends_nothing(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG) as (_, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        receiver.tell("wait 1")
        _says(receiver, "from", "receives that are outstanding: 1", "the rank there sends nothing")


@pytest.mark.nightly
def test_a_host_that_is_gone(tmp_path: Path) -> None:
    with connected(tmp_path, seconds=LONG) as (sender, receiver):
        cut(receiver.host)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        _says(sender, "to", "that host answers nothing")
