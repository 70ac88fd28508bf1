# SPDX-License-Identifier: MIT
"""Who has the job's secret is let in, and nobody else (BAGUA_NET_SECRET_FILE). The other side is a library, or a peer
that speaks the protocol byte by byte."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.netns.steps import LARGE, End, counters, listen, meet, pass_one
from tests.strangers import here, protocol
from tests.strangers.protocol import Handle, Stream
from tests.support import drivers
from tests.support.tiers import variants

SECRET, OTHER = b"the secret of this job", b"another job's secret, as long"


# ---- two libraries ----


@pytest.mark.parametrize(("api", "streams"), variants((12, 4), gate=[(4, 1)]))
def test_a_job_with_a_secret(tmp_path: Path, api: int, streams: int) -> None:
    """Every message arrives as it is."""
    settings = {
        "BAGUA_NET_SECRET_FILE": here.secret_file(tmp_path, SECRET),
        "BAGUA_NET_MIN_NSTREAMS": str(streams),
    }
    drivers.net(drivers.build(), "--api", str(api), "--procs", "3", "--messages", "100", settings=settings)


THERE = "BAGUA_NET_SECRET_FILE is set there, and not for this process"
HERE = "BAGUA_NET_SECRET_FILE is set for this process, and not there"
ANOTHER = "its BAGUA_NET_SECRET_FILE has another secret than this process's"


@pytest.mark.parametrize(
    ("sends", "receives", "sender_says", "receiver_says"),
    [(SECRET, OTHER, ANOTHER, ANOTHER), (SECRET, None, HERE, THERE), (None, SECRET, THERE, HERE)],
    ids=["different", "sender only", "receiver only"],
)
def test_two_that_do_not_belong_together(
    tmp_path: Path, sends: bytes | None, receives: bytes | None, sender_says: str, receiver_says: str
) -> None:
    """Each side has one line that says why, and the sender fails at once."""
    with here.end(tmp_path, "receiver", receives) as receiver:
        handle = listen(receiver)
        with here.end(tmp_path, "sender", sends) as sender:
            sender.tell(f"connect {handle}")
            log = here.wait_for_end(sender)
        assert f"127.0.0.1:{Handle.parse(handle).address[1]}: {sender_says}" in log
        receiver.await_log("WARN", "refused a connection from 127.0.0.1", receiver_says)


def test_the_one_that_waits_learns_why(tmp_path: Path) -> None:
    with here.end(tmp_path, "receiver", SECRET, BAGUA_NET_CONNECT_TIMEOUT=1) as receiver:
        handle = listen(receiver)
        with here.end(tmp_path, "sender", OTHER) as sender:
            sender.tell(f"connect {handle}")
            here.wait_for_end(sender)
        receiver.tell("accept")
        assert "One was refused that has not the same BAGUA_NET_SECRET_FILE" in here.wait_for_end(receiver)


def test_the_right_one_comes_after_the_wrong_one(tmp_path: Path) -> None:
    with here.end(tmp_path, "receiver", SECRET) as receiver:
        handle = listen(receiver)
        with here.end(tmp_path, "sender", OTHER) as sender:
            sender.tell(f"connect {handle}")
            here.wait_for_end(sender)
        with here.end(tmp_path, "sender", SECRET) as sender:
            sender.tell(f"connect {handle}")
            meet(sender, receiver)
            pass_one(sender, receiver, 1, LARGE)


def _fails_to_start(directory: Path, path: Path, **settings: Any) -> str:
    with here.end(directory, "sender", None, BAGUA_NET_SECRET_FILE=path, **settings) as process:
        return here.wait_for_end(process)


def test_a_file_that_will_not_do(tmp_path: Path) -> None:
    """The library refuses to start, so that no job runs without its secret. test_secret.c has the other bad files."""
    path = Path(here.secret_file(tmp_path, SECRET))
    path.chmod(0o644)
    assert f"BAGUA_NET_SECRET_FILE={path}: every user of this host can read" in _fails_to_start(tmp_path, path)
    missing = tmp_path / "none"
    assert f"BAGUA_NET_SECRET_FILE={missing}: No such file" in _fails_to_start(tmp_path, missing)


def test_a_machine_without_openssl(tmp_path: Path) -> None:
    path = Path(here.secret_file(tmp_path, SECRET))
    (tmp_path / "libcrypto.so.3").write_text("this is no library, and found first")
    log = _fails_to_start(tmp_path, path, LD_LIBRARY_PATH=tmp_path)
    assert f"BAGUA_NET_SECRET_FILE={path}: it needs OpenSSL 3's libcrypto" in log
    with here.end(tmp_path, "sender", None, LD_LIBRARY_PATH=tmp_path) as without:
        assert listen(without)


# ---- a peer that listens ----


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[End]:
    with here.end(tmp_path, "receiver", SECRET) as end:
        yield end


@pytest.fixture
def handle(receiver: End) -> Handle:
    return Handle.parse(listen(receiver))


def _carries_on(receiver: End, stream: Stream) -> None:
    """The stream delivers a message, which is empty."""
    assert receiver.ask("post 0") == "posted 0"
    stream.say(protocol.data(0, 0, 0, b""))
    assert receiver.ask("wait 0") == "done"


def _verdict(handle: Handle, said: bytes) -> int:
    """What the library answers at once to a first frame that it does not take. It proves nothing to whoever asks."""
    with protocol.dial(handle) as stream:
        stream.say(said)
        welcome = stream.hear_welcome()
        assert len(welcome.whole) == 8 + 24
        stream.hear_end()
        return welcome.verdict


def _forged(handle: Handle) -> dict[str, bytes]:
    """HELLOs of those who have the token, and not the secret."""
    right = protocol.hello(handle, secret=SECRET)
    changed = bytearray(right)
    changed[16] ^= 1  # the connection's number
    elsewhere = Handle(bytes(16), handle.address)
    return {
        "no proof": protocol.hello(handle),
        "another secret": protocol.hello(handle, secret=OTHER),
        "zeroes": protocol.hello(handle, secret=SECRET, serial=5)[:72] + bytes(48) + right[120:],
        "changed on the way": bytes(changed),
        "the proof of another listener's": protocol.hello(handle, secret=SECRET)[:72]
        + protocol.proof_of(protocol.HELLO, protocol.hello(elsewhere, secret=SECRET))
        + right[120:],
        "the proof of another kind of frame": right[:72]
        + protocol.proof_of(protocol.QUESTION, protocol.question(handle, secret=SECRET))
        + right[120:],
    }


def test_who_proves_nothing_is_refused(receiver: End, handle: Handle) -> None:
    """Each is counted."""
    for who, said in _forged(handle).items():
        assert _verdict(handle, said) == protocol.SECRET, who
    assert counters(receiver)["rejected"] == len(_forged(handle))
    with protocol.dial(handle) as stream:
        assert stream.open(protocol.hello(handle, secret=SECRET), SECRET).verdict == protocol.OK
        assert receiver.ask("accept") == "ok"
    receiver.await_log("WARN", "refused a connection")
    receiver.await_log("receives from 127.0.0.1")
    warnings = [line for line in receiver.log().splitlines() if "WARN" in line and "refused a connection" in line]
    assert len(warnings) == 1, "who sees the network could fill the log"


def _recorded(handle: Handle, said: bytes) -> tuple[bytes, bytes]:
    """What who sees the network has of a handshake: HELLO and CONFIRM."""
    with protocol.dial(handle) as stream:
        stream.say(said)
        kind, challenge = stream.hear_frame()
        assert kind == protocol.CHALLENGE
        return said, protocol.proof(protocol.CONFIRM, SECRET, protocol.proof_of(protocol.CHALLENGE, challenge))


def _is_challenged_and_dropped(handle: Handle, said: bytes, confirm: bytes) -> None:
    with protocol.dial(handle) as stream:
        stream.say(said)
        assert stream.hear_frame()[0] == protocol.CHALLENGE
        stream.say(confirm)
        with pytest.raises(ConnectionResetError):
            stream.hear_frame()


def test_a_handshake_that_was_recorded(receiver: End, handle: Handle) -> None:
    """Sent again it opens nothing: no connection, no stream of one, and it takes no stream's place."""
    for said in (
        protocol.hello(handle, secret=SECRET),
        protocol.hello(handle, stream=1, serial=2, secret=SECRET),
        protocol.hello(handle, stream=1, serial=2, repairs=1, secret=SECRET),
    ):
        _is_challenged_and_dropped(handle, *_recorded(handle, said))
        _is_challenged_and_dropped(handle, said, said)
        _is_challenged_and_dropped(handle, said, protocol.proof(protocol.CONFIRM, OTHER, bytes(48)))
    receiver.await_log("dropped a connection", "it does not confirm its first message (a replay, if it is no accident)")
    receiver.await_log("dropped a connection", "it does not confirm its first message")


def test_a_copy_that_is_faster_than_the_first_message(receiver: End, handle: Handle) -> None:
    """Who sees the network connects beforehand and sends what he sees: he is not let in, nor does he keep out the right
    one."""
    said = protocol.hello(handle, secret=SECRET)
    with protocol.dial(handle) as stranger, protocol.dial(handle) as stream:
        stranger.say(said)
        assert stranger.hear_frame()[0] == protocol.CHALLENGE
        assert stream.open(said, SECRET).verdict == protocol.OK
        assert receiver.ask("accept") == "ok"
        repair = protocol.hello(handle, stream=1, serial=2, repairs=1, secret=SECRET)
        with protocol.dial(handle) as other:
            other.say(repair)  # and no more: the stream goes on
            assert other.hear_frame()[0] == protocol.CHALLENGE
            _carries_on(receiver, stream)


def test_nobody_takes_the_place_of_a_stream(receiver: End, handle: Handle) -> None:
    """A repair of a stranger's, who has seen token, connection and serials."""
    with protocol.dial(handle) as stream:
        stream.open(protocol.hello(handle, secret=SECRET), SECRET)
        assert receiver.ask("accept") == "ok"
        for proven in (None, OTHER):
            said = protocol.hello(handle, stream=1, serial=2, repairs=1, secret=proven)
            assert _verdict(handle, said) == protocol.SECRET
        _carries_on(receiver, stream)


def test_a_question_is_answered_to_who_knows_the_secret(receiver: End, handle: Handle) -> None:
    with protocol.dial(handle) as stream:
        stream.open(protocol.hello(handle, secret=SECRET), SECRET)
        for proven in (None, OTHER):
            with protocol.dial(handle) as stranger:
                stranger.say(protocol.question(handle, secret=proven))
                with pytest.raises(ConnectionResetError):
                    stranger.hear_frame()
        receiver.await_log("dropped a connection", "it asks, and does not prove that it knows")
        assert counters(receiver)["rejected"] == 2
        asked = protocol.question(handle, secret=SECRET)
        with protocol.dial(handle) as asker:
            asker.say(asked)
            kind, answer = asker.hear_frame()
        assert kind == protocol.ANSWER
        assert protocol.holds(protocol.ANSWER, answer, SECRET, protocol.proof_of(protocol.QUESTION, asked))


# ---- frames in parts ----

#: So that each part is read by itself. On a slow machine two of them may be read together: the test then shows less.
PAUSE_S = 0.05


def _in_parts(stream: Stream, whole: bytes) -> None:
    for first, last in ((0, 3), (3, 8), (8, 20), (20, len(whole))):
        stream.say(whole[first:last])
        time.sleep(PAUSE_S)


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "none"])
def test_a_listener_takes_frames_in_parts(tmp_path: Path, secret: bytes | None) -> None:
    """As a proxy on the way may pass them on."""
    with here.end(tmp_path, "receiver", secret) as receiver:
        handle = Handle.parse(listen(receiver))
        said = protocol.hello(handle, secret=secret)
        with protocol.dial(handle) as stream:
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _in_parts(stream, said)
            if secret:
                _, challenge = stream.hear_frame()
                answered = protocol.proof_of(protocol.CHALLENGE, challenge)
                _in_parts(stream, protocol.proof(protocol.CONFIRM, secret, answered))
            assert stream.hear_welcome().verdict == protocol.OK
            assert receiver.ask("accept") == "ok"
            assert receiver.ask("post 0") == "posted 0"
            _in_parts(stream, protocol.data(0, 0, 0, b""))
            assert receiver.ask("wait 0") == "done"


def test_a_connector_takes_frames_in_parts(tmp_path: Path) -> None:
    with protocol.listen() as listener, here.end(tmp_path, "sender", SECRET) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = stream.hear_hello()
        challenge = protocol.proof(protocol.CHALLENGE, SECRET, protocol.proof_of(protocol.HELLO, said.whole))
        _in_parts(stream, challenge)
        _, confirm = stream.hear_frame()
        answered = protocol.proof_of(protocol.CONFIRM, confirm)
        _in_parts(stream, protocol.welcome(said.connection, secret=SECRET, answered=answered))
        assert sender.answer() == "ok"


# ---- a peer that is connected to ----


def _answers(said: protocol.Hello) -> dict[str, tuple[bytes, str]]:
    """The first answers of those who have not the secret, and what the sender says to each."""
    own = protocol.proof_of(protocol.HELLO, said.whole)
    elsewhere = protocol.proof_of(protocol.HELLO, protocol.hello(Handle(bytes(16), ("", 0)), secret=SECRET))
    return {
        "no proof": (protocol.welcome(said.connection), HERE),
        "no challenge": (protocol.welcome(said.connection, secret=SECRET, answered=own), ANOTHER),
        "nothing that is answered": (protocol.welcome(said.connection, secret=SECRET), ANOTHER),
        "two challenges": (2 * protocol.proof(protocol.CHALLENGE, SECRET, own), "it challenges twice"),
        "another secret": (protocol.proof(protocol.CHALLENGE, OTHER, own), ANOTHER),
        "a challenge to another": (protocol.proof(protocol.CHALLENGE, SECRET, elsewhere), ANOTHER),
        "its own proof": (protocol.frame(protocol.CHALLENGE, own), ANOTHER),
        "a refusal": (protocol.welcome(said.connection, verdict=protocol.GONE), HERE),
    }


@pytest.mark.parametrize(
    "who",
    [
        "no proof",
        "no challenge",
        "nothing that is answered",
        "two challenges",
        "another secret",
        "a challenge to another",
        "its own proof",
        "a refusal",
    ],
)
def test_a_listener_that_proves_nothing(tmp_path: Path, who: str) -> None:
    with protocol.listen() as listener, here.end(tmp_path, "sender", SECRET) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        said = stream.hear_hello()
        assert protocol.holds(protocol.HELLO, said.whole, SECRET)
        answer, says = _answers(said)[who]
        stream.say(answer)
        assert says in here.wait_for_end(sender)


def test_a_welcome_that_is_not_proven(tmp_path: Path) -> None:
    """By one who takes the connection over after the challenge."""
    with protocol.listen() as listener, here.end(tmp_path, "sender", SECRET) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        said = stream.hear_hello()
        stream.challenge(said, SECRET)
        stream.say(
            protocol.welcome(said.connection, secret=SECRET, answered=protocol.proof_of(protocol.HELLO, said.whole))
        )
        assert ANOTHER in here.wait_for_end(sender)


def _lies(connection: int) -> dict[str, bytes]:
    """Of a stranger on the way who answers in the listener's place."""
    return {
        "a welcome": protocol.welcome(connection, position=0),
        "a challenge": protocol.proof(protocol.CHALLENGE, OTHER, bytes(48)),
        "a damaged frame": protocol.frame(protocol.WELCOME, b"damaged " * 9),
        "another frame": protocol.frame(99, b""),
    }


@pytest.mark.parametrize("lie", _lies(0))
def test_a_repair_is_proven_as_well(tmp_path: Path, lie: str) -> None:
    """Each HELLO has a proof of its own, and what a stranger answers is no answer: it is tried again."""
    with protocol.listen() as listener, here.end(tmp_path, "sender", SECRET) as sender:
        sender.tell(f"connect {listener.handle.text()}")
        stream = listener.accept()
        first = stream.hear_hello()
        confirm = stream.challenge(first, SECRET)
        stream.say(protocol.welcome(first.connection, secret=SECRET, answered=confirm))
        assert sender.answer() == "ok"
        stream.reset()
        assert sender.ask("post 100") == "posted 0"
        stranger = listener.accept()
        again = stranger.hear_hello()
        assert again.repairs == first.serial
        assert again.serial > first.serial
        stranger.say(_lies(first.connection)[lie])
        stranger.hear_end()
        stream = listener.accept()
        last = stream.hear_hello()
        confirm = stream.challenge(last, SECRET)
        stream.say(protocol.welcome(last.connection, position=0, secret=SECRET, answered=confirm))
        kind, whole = stream.hear_frame()
        assert kind == protocol.DATA
        assert len(whole) == 32 + 100
        assert sender.ask("wait 0") == "done"
