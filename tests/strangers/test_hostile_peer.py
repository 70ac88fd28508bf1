# SPDX-License-Identifier: MIT
"""A peer that has the token, and the secret where there is one, and breaks one rule of the protocol after another. The
connection ends with a reason; the process goes on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.steps import End, listen
from tests.strangers import here, protocol
from tests.strangers.protocol import UNIT, Handle, Stream, data, frame
from tests.support.tiers import variants

SECRET = b"the secret of this job"
POSTED = 4 * UNIT
PAGE = b"x" * UNIT
HUGE = 2**32 - 1

OUTSIDE = "sent a slice that lies outside its message"
TOO_LONG = "but the receive posted for it has room for"
CUT_OFF = "it was closed in the middle of a message"

#: What the peer sends while a message of POSTED bytes is awaited, and the reason that the receiver logs.
BROKEN_RULES = {
    "an offset behind the message": (data(0, POSTED, 2 * POSTED, PAGE), OUTSIDE),
    "an offset that overflows": (data(0, POSTED, 2**64 - UNIT, PAGE), OUTSIDE),
    "an offset between two units": (data(0, POSTED, 100, PAGE), OUTSIDE),
    "a slice longer than its message": (data(0, UNIT, 0, PAGE * 2), OUTSIDE),
    "a slice of part of a unit": (data(0, POSTED, 0, PAGE[:100]), OUTSIDE),
    "a slice of nothing": (data(0, POSTED, 0, b""), OUTSIDE),
    "a frame of 4 GiB": (data(0, POSTED, 0, PAGE, HUGE - 24), OUTSIDE),
    "a frame too short for its kind": (frame(protocol.DATA, PAGE, 8), OUTSIDE),
    "a message larger than was posted": (data(0, POSTED + UNIT, 0, PAGE), TOO_LONG),
    "a message of 16 EiB": (data(0, 2**64 - 1, 0, PAGE), TOO_LONG),
    "another size than before": (
        data(0, POSTED, 0, PAGE) + data(0, POSTED - UNIT, UNIT, PAGE),
        "sent two slices that disagree about their message",
    ),
    "an end inside a header": (data(0, POSTED, 0, PAGE)[:13], CUT_OFF),
    "an end inside a payload": (data(0, POSTED, 0, PAGE)[:-1], CUT_OFF),
}


@pytest.fixture(params=variants(SECRET, gate=[None]), ids=["proven", "token"])
def secret(request: pytest.FixtureRequest) -> bytes | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def receiver(tmp_path: Path, secret: bytes | None) -> Iterator[End]:
    with here.end(tmp_path, "receiver", secret) as end:
        yield end


@pytest.fixture
def stream(receiver: End, secret: bytes | None) -> Iterator[Stream]:
    """A connection's, which the receiver has accepted, and on which it awaits a message."""
    handle = Handle.parse(listen(receiver))
    with protocol.dial(handle) as dialed:
        assert dialed.open(protocol.hello(handle, secret=secret), secret).verdict == protocol.OK
        assert receiver.ask("accept") == "ok"
        assert receiver.ask(f"post {POSTED}") == "posted 0"
        yield dialed


def _ends_in_order(process: End) -> None:
    assert process.ask("close") == "ok"
    assert process.process.stdin
    process.process.stdin.close()
    assert process.process.wait(here.DEADLINE) == 0, process.log()


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_sender_that_breaks_a_rule(receiver: End, stream: Stream, rule: str) -> None:
    said, reason = BROKEN_RULES[rule]
    stream.say(said)
    stream.socket.shutdown(socket.SHUT_WR)
    assert receiver.ask("wait 0").startswith("error ")
    receiver.await_log("WARN", "127.0.0.1", reason)
    _ends_in_order(receiver)


def test_frames_of_a_later_version_are_skipped(receiver: End, stream: Stream) -> None:
    """Whatever is in them, also what would be a HELLO or a WELCOME at the beginning of a stream."""
    stream.say(frame(99, PAGE), frame(protocol.HELLO, b""), frame(protocol.WELCOME, PAGE[:7]))
    stream.say(*(data(0, POSTED, offset, PAGE) for offset in range(0, POSTED, UNIT)))
    receiver.tell("wait 0")
    receiver.process.wait(here.DEADLINE)
    assert "message 0 came out wrong" in receiver.log()  # it is whole, and not what the driver would have sent


# ---- a listener ----

DAMAGED = "its answer is damaged"
NOT_OURS = "what listens there does not speak BaguaNet's protocol"


def _bodies(connection: int) -> dict[str, tuple[bytes, str]]:
    """Answers to the first HELLO of this connection, and what the sender says to them."""
    right = protocol.welcome(connection)
    body = right[8:]
    return {
        "another connection": (protocol.welcome(connection + 1), DAMAGED),
        "a verdict that nobody knows": (protocol.welcome(connection, verdict=99), "it refused for reason 99"),
        "17 addresses": (frame(protocol.WELCOME, body + bytes([17, 0, 0, 0]) + bytes(17 * 20)), DAMAGED),
        "an address of no family": (frame(protocol.WELCOME, body + bytes([1, 0, 0, 0, 9]) + bytes(19)), DAMAGED),
        "a proof longer than the frame": (right[:26] + bytes([60]) + right[27:], DAMAGED),
        "a frame longer than allowed": (frame(protocol.WELCOME, body + bytes(600)), NOT_OURS),
        "a frame too short": (frame(protocol.WELCOME, body[:12]), NOT_OURS),
        "another kind of frame": (data(0, UNIT, 0, PAGE), NOT_OURS),
    }


@pytest.mark.parametrize("rule", _bodies(0))
def test_an_answer_that_breaks_a_rule(tmp_path: Path, rule: str) -> None:
    with protocol.listen() as listener, here.end(tmp_path, "sender", None) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        answer, reason = _bodies(stream.hear_hello().connection)[rule]
        stream.say(answer)
        assert f"cannot connect from lo (127.0.0.1) to 127.0.0.1:{listener.handle.address[1]}: {reason}" in (
            here.wait_for_end(sender)
        )


@contextlib.contextmanager
def _sends_to(directory: Path) -> Iterator[tuple[End, Stream, protocol.Listener, protocol.Hello]]:
    with protocol.listen() as listener, here.end(directory, "sender", None) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        first = stream.hear_hello()
        stream.say(protocol.welcome(first.connection))
        assert sender.answer() == "ok"
        yield sender, stream, listener, first


def test_a_receiver_that_speaks_where_it_should_be_silent(tmp_path: Path) -> None:
    """Nobody reads it, and nothing waits for it."""
    with _sends_to(tmp_path) as (sender, stream, _, first):
        stream.say(b"garbage" * 100, protocol.welcome(first.connection), data(0, UNIT, 0, PAGE))
        assert sender.ask("post 100") == "posted 0"
        assert stream.hear_frame()[0] == protocol.DATA
        assert sender.ask("wait 0") == "done"
        _ends_in_order(sender)


@pytest.mark.parametrize("position", [133, 2**40, 2**64 - 1])
def test_a_receiver_that_has_received_what_was_not_sent(tmp_path: Path, position: int) -> None:
    """At the repair of a stream on which one message of 100 bytes was sent: 132 with its header."""
    with _sends_to(tmp_path) as (sender, stream, listener, first):
        assert sender.ask("post 100") == "posted 0"
        stream.hear_frame()
        stream.reset()
        again = listener.accept()
        again.hear_hello()
        again.say(protocol.welcome(first.connection, position=position))
        sender.await_log("WARN", "127.0.0.1", "says that it has more of a broken stream than was sent")
        answer = sender.ask("post 100")
        assert "error" in (answer if "error" in answer else sender.ask("wait 1"))
        _ends_in_order(sender)
