# SPDX-License-Identifier: MIT
"""With repair on: what a stream that dies costs, also beside a close, and when it is an error."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.netns.steps import (
    LARGE,
    LONG,
    MOST,
    REMOTE_ERROR,
    SHORT,
    SMALL,
    End,
    connected,
    cut,
    fails,
    pass_one,
    send_into_the_kernel,
)
from tests.strangers import here
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

PART = 65536


def _repeats(end: End) -> int:
    """How often in a row the kernel has sent the oldest bytes of the end's stream again."""
    (times,) = re.findall(r"timer:\(on,[^,]+,(\d+)\)", end.host.socket_details()) or [0]
    return int(times)


def _settings(directory: Path, encrypts: bool) -> dict[str, object]:
    """Each stream then has keys of its own: what was lost is encrypted again."""
    if not encrypts:
        return {}
    file = here.secret_file(directory, b"the secret of this test")
    return {"BAGUA_NET_SECRET_FILE": file, "BAGUA_NET_ENCRYPT": 1}


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_stream_that_dies_on_the_sender_s_side_is_repaired(tmp_path: Path, encrypts: bool) -> None:
    """The sender's requests are all done. What the stream has lost comes on another one."""
    settings = _settings(tmp_path, encrypts)
    with connected(tmp_path, LONG, streams=4, repair=True, settings=settings) as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        port = max(sender.sockets())
        cut(receiver.host, f"tcp sport {port}", ways=("input",))
        assert sender.ask(f"post {LARGE}") == "posted 1"
        receiver.tell("wait 1")
        assert sender.ask("wait 1") == "done"
        sender.until(lambda: [each for each, missing in sender.sockets().items() if missing] == [port])
        cut(receiver.host, f"tcp sport {port}", "reject with tcp reset", ("input",))
        assert receiver.answer() == "done"
        assert "nothing is lost" in sender.log()
        assert "WARN" not in sender.log() + receiver.log()


@pytest.mark.parametrize("answer", ["port-unreachable", "admin-prohibited"])
def test_a_stream_that_a_firewall_rejects_for_a_moment_is_none_that_died(tmp_path: Path, answer: str) -> None:
    """The kernel of the sender notes the ICMP error and sends the packets again. The sender's only stream is full, so
    that the sender asks what has become of it."""
    messages = range(1, 9)
    with connected(tmp_path, LONG, repair=True) as (sender, receiver):
        for message in messages:
            assert receiver.ask(f"post {PART}") == f"posted {message}"
        cut(receiver.host, "", f"counter reject with icmpx type {answer}", ("input",))
        for message in messages:
            assert sender.ask(f"post {PART}") == f"posted {message}"
        sender.tell("wait 1")
        sender.until(lambda: _repeats(sender) > 1 or "broke" in sender.log())
        assert receiver.host.packets("cut") > 1
        cut(receiver.host, "tcp dport 1", "accept")
        assert sender.answer() == "done"
        for message in messages:
            assert sender.ask(f"wait {message}") == receiver.ask(f"wait {message}") == "done"
        assert "WARN" not in sender.log() + receiver.log()
        assert "broke" not in sender.log()


def test_with_a_peer_that_does_not_repair_a_reset_is_an_error_on_both_sides(tmp_path: Path) -> None:
    """As with one of a version before that."""
    with connected(tmp_path, LONG, streams=4, repair=True, peer_repairs=False) as (sender, receiver):
        pass_one(sender, receiver, 1, LARGE)
        assert receiver.ask(f"post {LARGE}") == "posted 2"
        cut(receiver.host, f"tcp sport {max(sender.sockets())}", "reject with tcp reset", ("input",))
        assert sender.ask(f"post {LARGE}") == "posted 2"
        fails(sender, 2)
        fails(receiver, 2)


def _until_gone(sender: End, ports: set[int]) -> None:
    sender.until(lambda: not ports.intersection(sender.sockets()))


@pytest.mark.parametrize(("streams", "encrypts"), [(1, True), (4, False)])
def test_idle_streams_that_are_reset_are_replaced(tmp_path: Path, streams: int, encrypts: bool) -> None:
    """As by a middlebox that has forgotten them: it answers the probes of the sender's kernel."""
    settings = _settings(tmp_path, encrypts)
    with connected(tmp_path, streams=streams, repair=True, settings=settings) as (sender, receiver):
        for message in (1, 2):
            forgotten = set(sender.sockets())
            ports = ", ".join(map(str, forgotten))
            cut(receiver.host, f"tcp sport {{ {ports} }}", "reject with tcp reset", ("input",))
            _until_gone(sender, forgotten)
            pass_one(sender, receiver, message, LARGE)
            sender.until(lambda: len(sender.sockets()) == streams)
        receiver.until(lambda: sorted(receiver.sockets()) == sorted(sender.sockets()))
        assert "WARN" not in sender.log() + receiver.log()


def test_a_repair_that_is_refused_is_an_error_on_both_sides(tmp_path: Path) -> None:
    """To the sender it looks as if nothing listened any more; the receiver hears nothing."""
    with connected(tmp_path, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        send_into_the_kernel(sender)
        cut(receiver.host, "ip protocol tcp", "reject with tcp reset", ("input",))
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", "another stream did not come up")
        fails(receiver, 1)


def test_a_repair_that_finds_no_way_says_so(tmp_path: Path) -> None:
    rejected = "tcp flags & (syn | ack) == syn reject with icmpx type admin-prohibited\nmeta l4proto tcp"
    with connected(tmp_path, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        send_into_the_kernel(sender)
        cut(receiver.host, rejected, "reject with tcp reset", ("input",))
        said = "another stream did not come up: No route to host"
        sender.await_log("WARN", f"to {sender.peer()}:", "broke", said)


@pytest.mark.parametrize(("streams", "idle"), variants((1, True), (4, False), nightly=[(1, False), (4, True)]))
def test_a_partition_ends_a_repair(tmp_path: Path, streams: int, idle: bool) -> None:
    """A host that is gone is told from a stream that is: nothing is heard of the other ones, either."""
    with connected(tmp_path, streams=streams, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        if not idle:
            send_into_the_kernel(sender)
        fails(receiver, 1)
        if idle:
            sender.until(lambda: not sender.sockets())
            assert sender.ask(f"post {SMALL}") == "posted 1"
        said = () if idle else ("nothing has come from that host", "BAGUA_NET_KEEPALIVE")
        sender.await_log("WARN", f"to {sender.peer()}:", " broke: ", *said)


@pytest.mark.nightly
def test_a_partition_is_waited_for_once(tmp_path: Path) -> None:
    """The kernel's probes have waited before the streams end."""
    keepalive = 60
    with connected(tmp_path, keepalive, repair=True, deadline=200) as (_, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        cut(receiver.host)
        receiver.until(lambda: not receiver.sockets())
        since = time.monotonic()
        fails(receiver, 1)
        assert "nothing has come from its sender" in receiver.log()
        assert time.monotonic() - since < 0.7 * keepalive  # it asks for a fifth of it


def test_small_messages_to_a_process_that_has_ended(tmp_path: Path) -> None:
    """Each is done. What was not read ends its stream alone with a reset: the others know no more than that nobody
    reads."""
    with connected(tmp_path, LONG, streams=4, repair=True) as (sender, receiver):
        assert sender.ask(f"post {SMALL}") == "posted 1"
        receiver.process.kill()
        receiver.process.wait()
        answer = sender.ask("wait 1")
        for message in range(2, MOST):
            if answer == "done":
                answer = sender.ask(f"post {SMALL}")
            if answer == f"posted {message}":
                answer = sender.ask(f"wait {message}")
        assert answer == f"error {REMOTE_ERROR}"


@pytest.mark.nightly
@pytest.mark.parametrize("streams", [1, 4])
def test_a_link_that_is_cut_for_a_minute(tmp_path: Path, streams: int) -> None:
    with connected(tmp_path, LONG, streams=streams, repair=True, deadline=200) as (sender, receiver):
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        cut(receiver.host)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        time.sleep(60)  # the cut itself
        cut(receiver.host, "tcp dport 1", "accept")
        assert sender.ask("wait 1") == receiver.ask("wait 1") == "done"
        warnings = [line for line in (sender.log() + receiver.log()).splitlines() if "WARN" in line]
        assert warnings
        assert all("nothing has moved for" in line for line in warnings)


def test_the_end_of_a_try_is_not_that_of_the_connection(tmp_path: Path) -> None:
    """The receiver's answer to a repair is lost for so long that the sender closes that socket and tries again."""
    with connected(tmp_path, LONG, repair=True) as (sender, receiver):
        (first,) = sender.sockets()
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        receiver.tell("wait 1")
        answers = "type filter hook output priority 0\ntcp sport != 1 meta length > 80 drop"
        receiver.host.nft(f"table inet answers {{\nchain out {{\n{answers}\n}}\n}}\n")
        cut(receiver.host, f"tcp sport {first}", "reject with tcp reset", ("input",))
        send_into_the_kernel(sender)
        seen = {first}

        def two_tries() -> bool:
            seen.update(sender.sockets())
            return len(seen) == 3

        sender.until(two_tries)
        receiver.host.nft("delete table inet answers\n")
        assert receiver.answer() == "done"
        assert "WARN" not in sender.log() + receiver.log()


def test_what_a_closed_sender_owes_arrives(tmp_path: Path) -> None:
    """Its only stream dies after close has returned."""
    with connected(tmp_path, LONG, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        (port,) = sender.sockets()
        cut(receiver.host)
        send_into_the_kernel(sender)
        assert sender.ask("close") == "ok"
        cut(receiver.host, f"tcp sport {port}", "reject with tcp reset", ("input",))
        assert receiver.ask("wait 1") == "done"
        sender.until(lambda: not sender.sockets())
        assert "WARN" not in sender.log() + receiver.log()


def test_a_receiver_whose_stream_died_waits_for_an_idle_sender(tmp_path: Path) -> None:
    """Its sender knows of nothing, sends nothing for some times BAGUA_NET_KEEPALIVE, and then something."""
    with connected(tmp_path, LONG, peer_seconds=SHORT, repair=True) as (sender, receiver):
        assert receiver.ask(f"post {SMALL}") == "posted 1"
        receiver.tell("wait 1")
        (port,) = sender.sockets()
        cut(sender.host, f"tcp dport {port}", "reject with tcp reset", ("input",))  # of the receiver's own probes
        receiver.until(lambda: not receiver.sockets())
        cut(sender.host, "tcp dport 1", "accept")
        time.sleep(3 * SHORT)  # it asks, and is told that it may wait
        assert receiver.is_waiting()
        assert sender.ask(f"post {SMALL}") == "posted 1"
        assert sender.ask("wait 1") == receiver.answer() == "done"


@pytest.mark.parametrize("streams", [1, 4])
def test_a_silent_stream_is_replaced(tmp_path: Path, streams: int) -> None:
    """Its packets vanish, as on one of several ways through a network. Those of others do not."""
    with connected(tmp_path, LONG, streams=streams, repair=True) as (sender, receiver):
        port = max(sender.sockets())
        cut(receiver.host, f"tcp sport {port}", ways=("input",))
        pass_one(sender, receiver, 1, LARGE)
        sender.await_log("INFO", "Connection timed out", "nothing is lost")
        assert port not in sender.sockets()
        assert "WARN" not in sender.log() + receiver.log()


def test_while_a_host_is_silent_its_streams_are_kept(tmp_path: Path) -> None:
    """Others in their place find no answer, either."""
    with connected(tmp_path, LONG, streams=4, repair=True) as (sender, receiver):
        ports = set(sender.sockets())
        assert receiver.ask(f"post {LARGE}") == "posted 1"
        cut(receiver.host)
        assert sender.ask(f"post {LARGE}") == "posted 1"
        sender.await_log("INFO", "is silent", "another one in its place gets no further")
        assert set(sender.sockets()) == ports
        cut(receiver.host, "tcp dport 1", "accept")
        assert sender.ask("wait 1") == receiver.ask("wait 1") == "done"
        assert "WARN" not in sender.log() + receiver.log()
