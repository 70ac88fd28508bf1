# SPDX-License-Identifier: MIT
"""Behind a proxy that ends TCP, whose acknowledgements say nothing of the receiver: a message arrives whole, or the
connection ends with an error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.netns.steps import LARGE, LONG, SMALL, Ends, ends, listen, meet, pass_one, send_into_the_kernel
from tests.support import tcp_proxy
from tests.support.tcp_proxy import Proxy
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

STREAMS = 4


@contextmanager
def _proxied(directory: Path, streams: int) -> Iterator[tuple[Ends, Proxy]]:
    with (
        ends(directory, LONG, streams=streams, repair=True) as (sender, receiver),
        tcp_proxy.beside(sender.host) as proxy,
    ):
        sender.tell(f"connect {listen(receiver)}")
        meet(sender, receiver)
        yield (sender, receiver), proxy


@pytest.mark.parametrize("streams", variants(STREAMS, nightly=[1]))
def test_resets_that_lose_nothing_are_repaired(tmp_path: Path, streams: int) -> None:
    with _proxied(tmp_path, streams) as ((sender, receiver), proxy):
        for message in range(1, 4):
            proxy.reset()
            pass_one(sender, receiver, message, LARGE)
        assert "nothing is lost" in sender.log()
        assert "WARN" not in sender.log() + receiver.log()


@pytest.mark.parametrize("streams", variants(1, nightly=[STREAMS]))
def test_acknowledged_bytes_that_are_lost_are_an_error_on_both_sides(tmp_path: Path, streams: int) -> None:
    """Also where the sender has nothing more to send: the receiver makes it look."""
    with _proxied(tmp_path, streams) as ((sender, receiver), proxy):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        proxy.hold()
        send_into_the_kernel(sender)
        receiver.tell("wait 1")
        time.sleep(3)  # by then the sender has no copy any more
        proxy.reset()
        sender.await_log("WARN", f"to {sender.peer()}:", "have not arrived", "a proxy, a service mesh")
        assert receiver.answer().startswith("error")


@pytest.mark.nightly
def test_a_message_that_is_cut_off_is_an_error_or_arrives(tmp_path: Path) -> None:
    """Never wrong bytes: the receiver checks them."""
    with _proxied(tmp_path, STREAMS) as ((sender, receiver), proxy):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        proxy.hold()
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.tell("wait 1")
        sender.until(lambda: not any(sender.sockets().values()))
        proxy.reset()
        assert (sender.answer(), receiver.ask("wait 1")) in (
            ("done", "done"),
            ("error 6", "error 6"),
            ("done", "error 6"),
        )
