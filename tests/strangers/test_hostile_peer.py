# SPDX-License-Identifier: MIT
"""A peer that has the token, and the secret where there is one, and breaks one rule of the protocol after another. The
connection ends with a reason; the process goes on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
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
GIVEN_UP = "the sender has given it up"
CLOSE, FAILED = frame(protocol.CLOSE, b""), frame(protocol.FAILED, b"")

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
    "two slices that overlap in part": (
        data(0, POSTED, 0, PAGE * 2) + data(0, POSTED, UNIT, PAGE * 2),
        "sent overlapping slices",
    ),
    "given up within a message": (data(0, POSTED, 0, PAGE) + FAILED, GIVEN_UP),
    "a message that goes on though it was given up": (FAILED + data(0, POSTED, 0, PAGE * 4), GIVEN_UP),
    "given up behind the end": (CLOSE + FAILED, GIVEN_UP),
    "given up with a body": (frame(protocol.FAILED, PAGE), GIVEN_UP),
    "an end of 4 GiB": (frame(protocol.CLOSE, PAGE, HUGE), CUT_OFF),
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


def test_a_sender_that_closes_within_a_message(receiver: End, stream: Stream) -> None:
    """The receive fails; to the log it is an end in order, since its sender has said so."""
    stream.say(data(0, POSTED, 0, PAGE), CLOSE)
    stream.socket.shutdown(socket.SHUT_WR)
    assert receiver.ask("wait 0").startswith("error ")
    receiver.await_log("127.0.0.1", "has closed its connection; receives that are left: 1")
    assert "WARN" not in receiver.log()
    _ends_in_order(receiver)


def _right(message: int, units: range) -> bytes:
    """Slices of a message of POSTED bytes as the driver expects it."""
    whole = here.payload(message, POSTED)
    return b"".join(data(message, POSTED, at * UNIT, whole[at * UNIT :][:UNIT]) for at in units)


def test_a_sender_that_goes_on_behind_its_end(receiver: End, stream: Stream) -> None:
    """What is awaited is taken, also where the frame has a body, which none has."""
    stream.say(_right(0, range(2)), CLOSE, frame(protocol.CLOSE, PAGE), _right(0, range(2, 4)))
    assert receiver.ask("wait 0") == "done"
    _ends_in_order(receiver)


def test_messages_in_descending_order(receiver: End, stream: Stream) -> None:
    """The order is the sender's to keep: of messages that are awaited each is taken when it comes."""
    assert receiver.ask(f"post {POSTED}") == "posted 1"
    stream.say(_right(1, range(4)), _right(0, range(4)))
    assert receiver.ask("wait 1") == "done"
    assert receiver.ask("wait 0") == "done"
    _ends_in_order(receiver)


def test_frames_of_a_later_version_are_skipped(receiver: End, stream: Stream) -> None:
    """Whatever is in them, also what would be a HELLO or a WELCOME at the beginning of a stream."""
    stream.say(frame(99, PAGE), frame(protocol.HELLO, b""), frame(protocol.WELCOME, PAGE[:7]))
    stream.say(*(data(0, POSTED, offset, PAGE) for offset in range(0, POSTED, UNIT)))
    receiver.tell("wait 0")
    receiver.process.wait(here.DEADLINE)
    assert "message 0 came out wrong" in receiver.log()  # it is whole, and not what the driver would have sent


# ---- HELLOs ----

NO_LISTENER = "it asks for a listener that does not exist (any more)"
NO_CONNECTION = "it adds a stream to a connection that does not exist (any more)"
ANOTHER = protocol.CONNECTION + 1


def _hellos(handle: Handle, secret: bytes | None) -> dict[str, tuple[bytes, int, str]]:
    """What somebody says who has a connection already, its verdict, and what the log says."""
    elsewhere = Handle(bytes(16), handle.address)
    return {
        "of another job": (protocol.hello(elsewhere, connection=ANOTHER, secret=secret), protocol.TOKEN, NO_LISTENER),
        "of the same connection": (protocol.hello(handle, secret=secret), protocol.TOKEN, NO_LISTENER),
        "a stream of no connection": (
            protocol.hello(handle, stream=1, connection=ANOTHER, secret=secret),
            protocol.GONE,
            NO_CONNECTION,
        ),
        "a repair of no connection": (
            protocol.hello(handle, stream=1, connection=ANOTHER, serial=2, repairs=1, secret=secret),
            protocol.GONE,
            NO_CONNECTION,
        ),
        "a stream of another listener's connection": (
            protocol.hello(elsewhere, stream=1, serial=2, secret=secret),
            protocol.GONE,
            NO_CONNECTION,
        ),
        "a stream too many": (
            protocol.hello(handle, stream=1, serial=2, secret=secret),
            protocol.LIMIT,
            "there is no room for another stream",
        ),
    }


def _is_refused(handle: Handle, said: bytes, secret: bytes | None) -> int:
    """The verdict."""
    with protocol.dial(handle) as stream:
        verdict = stream.open(said, secret).verdict
        stream.hear_end()
        return verdict


@pytest.mark.parametrize("rule", _hellos(Handle(b"", ("", 0)), None))
def test_a_hello_that_breaks_a_rule(receiver: End, secret: bytes | None, rule: str) -> None:
    """The connection that is there and the listener go on."""
    handle = Handle.parse(listen(receiver))
    with protocol.dial(handle) as stream, protocol.dial(handle) as another:
        assert stream.open(protocol.hello(handle, secret=secret), secret).verdict == protocol.OK
        assert receiver.ask("accept more") == "ok"
        said, verdict, reason = _hellos(handle, secret)[rule]
        assert _is_refused(handle, said, secret) == verdict
        receiver.await_log("dropped a connection from 127.0.0.1", reason)
        assert receiver.ask(f"post {POSTED}") == "posted 0"
        stream.say(_right(0, range(4)))
        assert receiver.ask("wait 0") == "done"
        assert another.open(protocol.hello(handle, connection=ANOTHER, secret=secret), secret).verdict == protocol.OK
        _ends_in_order(receiver)


def test_a_stream_of_a_connection_that_has_failed(receiver: End, secret: bytes | None) -> None:
    """A further one, and one that repairs."""
    handle = Handle.parse(listen(receiver))
    with protocol.dial(handle) as stream:
        stream.open(protocol.hello(handle, secret=secret), secret)
        assert receiver.ask("accept more") == "ok"
        assert receiver.ask(f"post {POSTED}") == "posted 0"
        stream.say(FAILED)
        assert receiver.ask("wait 0").startswith("error ")
        for repairs in (0, 1):
            said = protocol.hello(handle, stream=1, serial=2, repairs=repairs, secret=secret)
            assert _is_refused(handle, said, secret) == protocol.GONE
        _ends_in_order(receiver)


@pytest.mark.parametrize("kind", [protocol.CHALLENGE, protocol.CONFIRM])
def test_a_proof_of_nothing(receiver: End, secret: bytes | None, kind: int) -> None:
    """Where a HELLO should be, to one that has a secret or none."""
    handle = Handle.parse(listen(receiver))
    with protocol.dial(handle) as stream:
        stream.say(protocol.proof(kind, SECRET, bytes(48)))
        stream.hear_end()
    receiver.await_log("dropped a connection from 127.0.0.1", "it does not speak BaguaNet's protocol")
    with protocol.dial(handle) as stream:
        assert stream.open(protocol.hello(handle, secret=secret), secret).verdict == protocol.OK


# ---- a listener ----

DAMAGED = "its answer is damaged"
NOT_OURS = "what listens there does not speak BaguaNet's protocol"
GONE = "the remote communicator is gone"


def _bodies(connection: int) -> dict[str, tuple[bytes, str]]:
    """Answers to the first HELLO of this connection, and what the sender says to them."""
    right = protocol.welcome(connection)
    body = right[8:]
    return {
        "another connection": (protocol.welcome(connection + 1), DAMAGED),
        "17 addresses": (frame(protocol.WELCOME, body + bytes([17, 0, 0, 0]) + bytes(17 * 20)), DAMAGED),
        "an address of no family": (frame(protocol.WELCOME, body + bytes([1, 0, 0, 0, 9]) + bytes(19)), DAMAGED),
        "a proof longer than the frame": (right[:26] + bytes([60]) + right[27:], DAMAGED),
        "a frame longer than allowed": (frame(protocol.WELCOME, body + bytes(600)), NOT_OURS),
        "a frame too short": (frame(protocol.WELCOME, body[:12]), NOT_OURS),
        "another kind of frame": (data(0, UNIT, 0, PAGE), NOT_OURS),
        "a challenge of no size": (frame(protocol.CHALLENGE, b""), NOT_OURS),
        "a challenge of 4 GiB": (frame(protocol.CHALLENGE, PAGE, HUGE), NOT_OURS),
    }


def _refusals(connection: int) -> dict[str, tuple[bytes, str]]:
    return {
        "a verdict that nobody knows": (protocol.welcome(connection, verdict=99), "it refused for reason 99"),
        "no listener": (protocol.welcome(connection, verdict=protocol.TOKEN), GONE),
        "no connection": (protocol.welcome(connection, verdict=protocol.GONE), GONE),
        "no room": (protocol.welcome(connection, verdict=protocol.LIMIT), "it has no room for another stream"),
    }


def _hears(directory: Path, secret: bytes | None, answer: Callable[[int], bytes]) -> str:
    """What a sender says to the answer to its first HELLO. It ends with that."""
    with protocol.listen() as listener, here.end(directory, "sender", secret) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        stream.say(answer(stream.hear_hello().connection))
        log = here.wait_for_end(sender)
        before = f"cannot connect from lo (127.0.0.1) to 127.0.0.1:{listener.handle.address[1]}: "
        assert before in log, log
        return log.partition(before)[2].splitlines()[0]


@pytest.mark.parametrize("rule", _bodies(0))
def test_an_answer_that_breaks_a_rule(tmp_path: Path, secret: bytes | None, rule: str) -> None:
    """With a secret, where the challenge should be."""
    reason = _bodies(0)[rule][1]
    assert _hears(tmp_path, secret, lambda connection: _bodies(connection)[rule][0]).startswith(reason)


@pytest.mark.parametrize("rule", _refusals(0))
def test_an_answer_that_refuses(tmp_path: Path, secret: bytes | None, rule: str) -> None:
    """With a secret nobody is believed who has not proven it."""
    reason = _refusals(0)[rule][1] if secret is None else "BAGUA_NET_SECRET_FILE is set for this process, and not there"
    assert _hears(tmp_path, secret, lambda connection: _refusals(connection)[rule][0]).startswith(reason)


def test_a_challenge_to_one_that_has_no_secret(tmp_path: Path) -> None:
    challenge = protocol.proof(protocol.CHALLENGE, SECRET, bytes(48))
    assert _hears(tmp_path, None, lambda _: challenge).startswith(NOT_OURS)


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
