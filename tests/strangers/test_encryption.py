# SPDX-License-Identifier: MIT
"""Encrypted streams (BAGUA_NET_ENCRYPT): who is on the way learns nothing of the payload, and whatever he changes ends
the connection. Streams with checksums (BAGUA_NET_CHECKSUM): so does what is altered by accident."""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.netns import steps
from tests.netns.steps import SMALL, End, counters, listen, meet, pass_one
from tests.strangers import here, relay
from tests.strangers.protocol import Handle
from tests.strangers.relay import Change, Relay
from tests.support import drivers
from tests.support.tiers import variants

SECRET = b"the secret of this job"
BOTH: dict[str, Any] = {"BAGUA_NET_ENCRYPT": 1}
HEADER, TAG = 8, 16


@contextlib.contextmanager
def _connected(
    directory: Path, change: Change = relay.unchanged, secret: bytes | None = SECRET, **settings: Any
) -> Iterator[tuple[End, End, Relay]]:
    """A sender, a receiver, and one between them, after a message of SMALL bytes."""
    with (
        here.end(directory, "receiver", secret, **settings) as receiver,
        here.end(directory, "sender", secret, **settings) as sender,
        relay.between(Handle.parse(listen(receiver)), change) as on_the_way,
    ):
        sender.tell(f"connect {on_the_way.handle.text()}")
        meet(sender, receiver)
        yield sender, receiver, on_the_way


@pytest.mark.parametrize("encrypts", [1, 0])
def test_what_is_on_the_wire(tmp_path: Path, encrypts: int) -> None:
    """No 16 bytes of the payload; of a plain stream all of it."""
    with _connected(tmp_path, BAGUA_NET_ENCRYPT=encrypts) as (sender, receiver, on_the_way):
        pass_one(sender, receiver, 1, 1 << 18)
        seen = bytes(on_the_way.seen)
    payload = here.payload(1, 1 << 18)
    words = {payload[at : at + 16] for at in range(0, len(payload), 16)}
    found = {seen[at : at + 16] for at in range(len(seen) - 15)} & words
    assert found == (set() if encrypts else words)


def _is(number: int, changed: bytes | None) -> Change:
    return lambda whole, count: changed if count == number else whole


def _flip(at: int) -> Change:
    def change(whole: bytes, number: int) -> bytes:
        return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] if number == 1 else whole

    return change


def _held(order: list[int]) -> Change:
    """Frames 1 and 2 are passed on together, in that order."""
    held: list[bytes] = []

    def change(whole: bytes, number: int) -> bytes:
        if number in (1, 2):
            held.append(whole)
            return b"".join(held[i] for i in order) if number == 2 else b""
        return whole

    return change


DOES_NOT_VERIFY = "does not verify (BAGUA_NET_ENCRYPT): it was altered on the way"
CHANGES: dict[str, tuple[Change, str]] = {
    "a bit of a header": (_flip(0), DOES_NOT_VERIFY),
    "a bit of a payload": (_flip(HEADER + 100), DOES_NOT_VERIFY),
    "a bit of a tag": (_flip(-1), DOES_NOT_VERIFY),
    "a frame once more": (lambda whole, number: whole * 2 if number == 1 else whole, DOES_NOT_VERIFY),
    "a frame left out": (_is(1, b""), DOES_NOT_VERIFY),
    "two frames that change places": (_held([1, 0]), DOES_NOT_VERIFY),
    "a frame cut off": (
        lambda whole, number: whole[: HEADER + 10] if number == 1 else None if number > 1 else whole,
        "it was closed in the middle of a message",
    ),
    "an end between two frames": (_is(1, None), "the peer closed it"),
    "a frame in clear": (
        lambda whole, number: b"\3\0\0\0\30\0\0\0" + bytes(24) if number == 1 else whole,
        DOES_NOT_VERIFY,
    ),
    "a length that no frame has": (
        lambda whole, number: b"\3\0\0\0\xff\xff\xff\xff" + whole[HEADER:] if number == 1 else whole,
        "does not verify (BAGUA_NET_ENCRYPT), with a length that no frame has: it was altered on the way",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("repair", variants(1, gate=[0]))
def test_what_is_changed_on_the_way(tmp_path: Path, what: str, repair: int) -> None:
    """The message of which a frame is changed does not arrive, the reason is said, and what did not verify counted."""
    change, reason = CHANGES[what]
    with _connected(tmp_path, change, BAGUA_NET_REPAIR=repair, **BOTH) as (sender, receiver, _):
        assert receiver.ask(f"post {1 << 20}") == "posted 1"
        sender.tell(f"post {1 << 20}")
        assert receiver.ask("wait 1").startswith("error ")
        assert counters(receiver)["unverified"] == ("does not verify" in reason)
        receiver.await_log("WARN", "127.0.0.1", reason)


def test_frames_of_another_connection(tmp_path: Path) -> None:
    recorded: list[bytes] = []

    def put_in(whole: bytes, number: int) -> bytes:
        return recorded[1] if number == 1 and recorded else whole

    for _ in range(2):
        with _connected(tmp_path, put_in, **BOTH) as (sender, receiver, on_the_way):
            assert receiver.ask(f"post {SMALL}") == "posted 1"
            sender.tell(f"post {SMALL}")
            answer = receiver.ask("wait 1")
            log, recorded = receiver.log(), on_the_way.frames
    assert answer.startswith("error ")
    assert DOES_NOT_VERIFY in log


@pytest.mark.parametrize(
    ("api", "settings"),
    variants(
        (12, {"BAGUA_NET_MIN_NSTREAMS": "4"}),
        (12, {"BAGUA_NET_THREADS": "2", "BAGUA_NET_MIN_NSTREAMS": "3"}),
        gate=[(4, {}), (12, {"BAGUA_NET_REPAIR": "0"}), (12, {"BAGUA_NET_ZEROCOPY": "1"})],
    ),
)
def test_a_job_that_encrypts(tmp_path: Path, api: int, settings: dict[str, str]) -> None:
    """Every message arrives as it is."""
    settings = settings | {"BAGUA_NET_SECRET_FILE": here.secret_file(tmp_path, SECRET), "BAGUA_NET_ENCRYPT": "1"}
    drivers.net(drivers.build(), "--api", str(api), "--procs", "3", "--messages", "300", settings=settings)


@pytest.mark.parametrize("sends", [1, 0])
@pytest.mark.parametrize(("variable", "secret"), [("BAGUA_NET_ENCRYPT", SECRET), ("BAGUA_NET_CHECKSUM", None)])
def test_one_end_alone(tmp_path: Path, variable: str, secret: bytes | None, sends: int) -> None:
    """Both ends say which of them has the variable, and the sender fails at once."""
    mine = f"{variable}=1 is set for this process, and not there"
    theirs = f"{variable}=1 is set there, and not for this process"
    with here.end(tmp_path, "receiver", secret, **{variable: 1 - sends}) as receiver:
        handle = listen(receiver)
        with here.end(tmp_path, "sender", secret, **{variable: sends}) as sender:
            sender.tell(f"connect {handle}")
            assert (mine if sends else theirs) in here.wait_for_end(sender)
        receiver.await_log("WARN", "refused a connection from 127.0.0.1", theirs if sends else mine)


def test_encryption_without_a_secret(tmp_path: Path) -> None:
    with here.end(tmp_path, "sender", None, **BOTH) as sender:
        assert "BAGUA_NET_ENCRYPT=1: it needs a secret; set BAGUA_NET_SECRET_FILE" in here.wait_for_end(sender)


# ---- checksums ----

CHECKSUM: dict[str, Any] = {"BAGUA_NET_CHECKSUM": 1}


@pytest.mark.parametrize("at", [0, HEADER - 1, HEADER + 100, -1], ids=["header", "length", "payload", "checksum"])
def test_what_is_altered_by_accident(tmp_path: Path, at: int) -> None:
    """The path is named: whose cable, card or memory it is. It is counted."""
    with _connected(tmp_path, _flip(at), None, **CHECKSUM) as (sender, receiver, _):
        assert receiver.ask(f"post {1 << 20}") == "posted 1"
        sender.tell(f"post {1 << 20}")
        assert receiver.ask("wait 1").startswith("error ")
        assert counters(receiver)["unverified"] == 1
        receiver.await_log("WARN", "what came from 127.0.0.1", "over lo (127.0.0.1)", "fails its checksum")


@pytest.mark.parametrize(("api", "streams"), variants((12, 4), gate=[(4, 1)]))
def test_a_job_with_checksums(api: int, streams: int) -> None:
    settings = {"BAGUA_NET_CHECKSUM": "1", "BAGUA_NET_MIN_NSTREAMS": str(streams)}
    drivers.net(drivers.build(), "--api", str(api), "--procs", "3", "--messages", "300", settings=settings)


def test_encryption_needs_no_checksum(tmp_path: Path) -> None:
    """One end that asks for both, and one that encrypts."""
    with (
        here.end(tmp_path, "receiver", SECRET, **BOTH) as receiver,
        here.end(tmp_path, "sender", SECRET, **BOTH, **CHECKSUM) as sender,
    ):
        sender.tell(f"connect {listen(receiver)}")
        meet(sender, receiver)


# ---- ciphers ----


class _WithoutAes(here.Here):
    """A processor of 2008."""

    @property
    def prefix(self) -> list[str]:
        return ["qemu-x86_64", "-cpu", "Nehalem"]


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 processor")
@pytest.mark.parametrize("sends", [True, False])
def test_a_processor_without_instructions_for_aes(tmp_path: Path, sends: bool) -> None:
    """Either end's decides."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("there is no qemu-x86_64 here")
    settings = here.settings(tmp_path, SECRET, **BOTH, NCCL_DEBUG="INFO")
    slow = steps.end_on(_WithoutAes("slow"), sends, tmp_path, settings, here.DEADLINE)
    fast = steps.end_on(here.Here("fast"), not sends, tmp_path, settings, here.DEADLINE)
    with slow as one, fast as other:
        sender, receiver = (one, other) if sends else (other, one)
        sender.tell(f"connect {listen(receiver)}")
        meet(sender, receiver)
        pass_one(sender, receiver, 1, 1 << 18)
        for each in (sender, receiver):
            each.await_log("encrypted with ChaCha20-Poly1305")


# ---- under sanitizers ----


@pytest.mark.gate
@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", drivers.SANITIZERS)
@pytest.mark.parametrize("seal", ["BAGUA_NET_ENCRYPT", "BAGUA_NET_CHECKSUM"])
def test_sanitized(tmp_path: Path, sanitizer: str, seal: str) -> None:
    settings = {"BAGUA_NET_MIN_NSTREAMS": "3", "BAGUA_NET_THREADS": "2", seal: "1"}
    if seal == "BAGUA_NET_ENCRYPT":
        # OpenSSL, which was built without a sanitizer, frees at exit what threads have that are not joined.
        suppressions = tmp_path / "suppressions"
        suppressions.write_text("race:libcrypto.so.3\n")
        settings["BAGUA_NET_SECRET_FILE"] = here.secret_file(tmp_path, SECRET)
        settings["ASAN_OPTIONS"] = "detect_leaks=0"
        settings["TSAN_OPTIONS"] = f"halt_on_error=1:die_after_fork=0:suppressions={suppressions}"
    drivers.net(drivers.build(sanitizer), "--api", "12", "--procs", "2", "--messages", "200", settings=settings)
