# SPDX-License-Identifier: MIT
"""Where messages are posted and nothing moves, the log says after 20 s what is waited for. What does not come so far
shows as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.netns.steps import LARGE, LONG, SMALL, End, connected, cut, ends, listen
from tests.package.running_jobs import command

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


def test_a_connection_that_is_not_made(tmp_path: Path) -> None:
    """`top` and `explain` say so, and since when. They have no connection to show."""
    with ends(tmp_path, stats=tmp_path) as (sender, receiver):
        handle = listen(receiver)
        cut(receiver.host)
        sender.tell(f"connect {handle}")

        def sentences() -> dict[int, str]:
            said = [line.split(": ") for line in command(tmp_path, "top", "--once").stderr.splitlines()]
            return {
                end.pid(): text for _, who, text in said for end in (sender, receiver) if f"PID {end.pid()})" in who
            }

        sender.until(lambda: "connection is being made, for" in sentences().get(sender.pid(), ""))
        assert sentences()[receiver.pid()] == "has no connection yet"
        done = command(tmp_path, "explain", str(sender.pid()), "--seconds", "1")
        assert done.returncode == 0
        assert "  1 connection is being made, for " in done.stdout
        assert "is it stopped" not in done.stdout
        (found,) = json.loads(command(tmp_path, "explain", str(sender.pid()), "--seconds", "1", "--json").stdout)
        assert found["connecting"] == 1
        assert found["connecting_seconds"] > 0
        cut(receiver.host, "ip daddr 192.0.2.1")
        assert sender.answer() == "ok"
        sender.until(lambda: sender.pid() not in sentences())
