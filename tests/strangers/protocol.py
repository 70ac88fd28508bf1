# SPDX-License-Identifier: MIT
"""A peer that speaks the wire protocol byte by byte, written a second time from docs/dev/protocol.md. What it proves
and breaks is the test's.

    with protocol.dial(Handle.parse(text)) as stream:
        stream.say(protocol.hello(handle, secret=SECRET))
        welcome = stream.hear_welcome()
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

HELLO, WELCOME, DATA, QUESTION, ANSWER, CLOSE, FAILED, CHALLENGE, CONFIRM = 1, 2, 3, 7, 8, 9, 10, 11, 12
OK, TOKEN, GONE, LIMIT, SECRET, ENCRYPT = 0, 2, 3, 4, 5, 6
REPAIRS, HAS_SECRET, ENCRYPTS, HAS_AES = 2, 4, 8, 16
CONNECTION = 77
UNIT = 4096
SECONDS = 30

_HANDLE_BYTES = 128
_FRAME = struct.Struct("<BBHI")
_HELLO = struct.Struct("<IHHQ16sI20sB7x")
_WELCOME = struct.Struct("<IHHQHBBI")
_DATA = struct.Struct("<QQQ")
_QUESTION = struct.Struct("<IHHQ16s8x")
_ANSWER = struct.Struct("<IHHQQQ")
_NONCE, _PROOF = 16, 48
#: Where in the frame the proof begins.
_PLACES = {
    HELLO: _FRAME.size + _HELLO.size,
    WELCOME: _FRAME.size + _WELCOME.size,
    QUESTION: _FRAME.size + _QUESTION.size,
    ANSWER: _FRAME.size + _ANSWER.size,
    CHALLENGE: _FRAME.size,
    CONFIRM: _FRAME.size,
}
_KINDS = {HELLO: 1, WELCOME: 2, QUESTION: 3, ANSWER: 4, CHALLENGE: 5, CONFIRM: 6}


def _magic(text: str) -> int:
    return int.from_bytes(text.encode(), "little")


def _fnv1a(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return value


@dataclass(frozen=True)
class Handle:
    """Of IPv4."""

    token: bytes
    address: tuple[str, int]

    @classmethod
    def parse(cls, text: str) -> Handle:
        data = bytes.fromhex(text)
        assert data[:4] == b"BNET"
        assert data[24] == 4
        return cls(data[8:24], (socket.inet_ntoa(data[28:32]), int.from_bytes(data[26:28], "big")))

    def text(self) -> str:
        host, port = self.address
        address = bytes([4, 0]) + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(12)
        head = b"BNET" + bytes([1, 0, 0, 0]) + self.token + address
        return (head + struct.pack("<I", _fnv1a(head))).ljust(_HANDLE_BYTES, b"\0").hex()


def frame(kind: int, body: bytes, length: int | None = None) -> bytes:
    """length: what it says, if not the body's."""
    return _FRAME.pack(kind, 0, 0, len(body) if length is None else length) + body


def _mac(kind: int, whole: bytes, secret: bytes, answered: bytes) -> bytes:
    place = _PLACES[kind] + _NONCE
    zeroed = whole[:place] + bytes(32) + whole[place + 32 :]
    text = b"bagua-net proof 1\0" + bytes([_KINDS[kind]]) + (answered or bytes(_PROOF)) + zeroed
    return hmac.new(secret, text, hashlib.sha256).digest()


def prove(kind: int, whole: bytes, secret: bytes, answered: bytes = b"") -> bytes:
    """The frame, which has the room for it, with its proof."""
    place = _PLACES[kind]
    whole = whole[:place] + os.urandom(_NONCE) + whole[place + _NONCE :]
    return whole[: place + _NONCE] + _mac(kind, whole, secret, answered) + whole[place + _PROOF :]


def proof_of(kind: int, whole: bytes) -> bytes:
    return whole[_PLACES[kind] : _PLACES[kind] + _PROOF]


def holds(kind: int, whole: bytes, secret: bytes, answered: bytes = b"") -> bool:
    return hmac.compare_digest(proof_of(kind, whole)[_NONCE:], _mac(kind, whole, secret, answered))


def proof(kind: int, secret: bytes, answered: bytes) -> bytes:
    """A CHALLENGE or a CONFIRM."""
    return prove(kind, frame(kind, bytes(_PROOF)), secret, answered)


def hello(
    handle: Handle,
    *,
    stream: int = 0,
    connection: int = CONNECTION,
    serial: int = 1,
    repairs: int = 0,
    version: int = 1,
    features: int = REPAIRS,
    secret: bytes | None = None,
) -> bytes:
    """secret: proves that it knows this one; None: has none."""
    features |= HAS_SECRET if secret else 0
    room = bytes(_PROOF) if secret else b""
    fixed = _HELLO.pack(_magic("BHLO"), version, stream, connection, handle.token, features, bytes(20), len(room))
    whole = frame(HELLO, fixed + room + struct.pack("<II", serial, repairs))
    return prove(HELLO, whole, secret) if secret else whole


def welcome(
    connection: int,
    *,
    verdict: int = OK,
    features: int = REPAIRS,
    position: int | None = None,
    secret: bytes | None = None,
    answered: bytes = b"",
) -> bytes:
    """position: of the stream that the HELLO repairs. answered: the proof of the CONFIRM."""
    features |= HAS_SECRET if secret else 0
    room = bytes(_PROOF) if secret else b""
    fixed = _WELCOME.pack(_magic("BWLC"), 1, verdict, connection, 64, len(room), 0, features)
    rest = b"" if position is None else struct.pack("<IQ", 0, position)
    whole = frame(WELCOME, fixed + room + rest)
    return prove(WELCOME, whole, secret, answered) if secret else whole


def question(
    handle: Handle, *, connection: int = CONNECTION, by_receiver: bool = False, secret: bytes | None = None
) -> bytes:
    room = bytes(_PROOF) if secret else b""
    fixed = _QUESTION.pack(_magic("QUST"), 1, int(by_receiver), connection, handle.token)
    whole = frame(QUESTION, fixed + room)
    return prove(QUESTION, whole, secret) if secret else whole


def data(message: int, size: int, offset: int, payload: bytes, length: int | None = None) -> bytes:
    """A slice. length: what its header says, if not the payload's."""
    said = len(payload) if length is None else length
    return frame(DATA, _DATA.pack(message, size, offset) + payload, _DATA.size + said)


@dataclass(frozen=True)
class Hello:
    """What a connector said."""

    whole: bytes
    stream: int = field(init=False)
    connection: int = field(init=False)
    features: int = field(init=False)
    serial: int = field(init=False)
    repairs: int = field(init=False)

    def __post_init__(self) -> None:
        magic, version, stream, connection, _, features, _, proof = _HELLO.unpack_from(self.whole, _FRAME.size)
        assert (magic, version) == (_magic("BHLO"), 1)
        serial, repairs = struct.unpack_from("<II", self.whole, _FRAME.size + _HELLO.size + proof)
        found = {"stream": stream, "connection": connection, "features": features, "serial": serial}
        for name, value in (found | {"repairs": repairs}).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Welcome:
    """What a listener said."""

    whole: bytes
    verdict: int = field(init=False)
    features: int = field(init=False)

    def __post_init__(self) -> None:
        magic, version, verdict, _, _, _, _, features = _WELCOME.unpack_from(self.whole, _FRAME.size)
        assert (magic, version) == (_magic("BWLC"), 1)
        object.__setattr__(self, "verdict", verdict)
        object.__setattr__(self, "features", features)


@dataclass(frozen=True)
class Stream:
    """A socket to or from the library."""

    socket: socket.socket

    def say(self, *frames: bytes) -> None:
        """What the library has closed meanwhile takes no more."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(b"".join(frames))

    def _hear(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            if not more:
                raise ConnectionResetError("the library has closed the connection")
            got += more
        return got

    def hear_frame(self) -> tuple[int, bytes]:
        """Its kind, and all of it."""
        head = self._hear(_FRAME.size)
        kind, _, _, length = _FRAME.unpack(head)
        return kind, head + self._hear(length)

    def hear_hello(self) -> Hello:
        kind, whole = self.hear_frame()
        assert kind == HELLO
        return Hello(whole)

    def hear_welcome(self) -> Welcome:
        kind, whole = self.hear_frame()
        assert kind == WELCOME
        return Welcome(whole)

    def open(self, said: bytes, secret: bytes | None) -> Welcome:
        """A HELLO, and with a secret what follows it, until its answer."""
        self.say(said)
        kind, whole = self.hear_frame()
        if kind == CHALLENGE:
            assert secret is not None
            assert holds(CHALLENGE, whole, secret, proof_of(HELLO, said))
            confirm = proof(CONFIRM, secret, proof_of(CHALLENGE, whole))
            self.say(confirm)
            kind, whole = self.hear_frame()
            assert holds(WELCOME, whole, secret, proof_of(CONFIRM, confirm))
        assert kind == WELCOME
        return Welcome(whole)

    def challenge(self, said: Hello, secret: bytes) -> bytes:
        """In the place of a listener with a secret. The CONFIRM's proof."""
        assert holds(HELLO, said.whole, secret)
        challenge = proof(CHALLENGE, secret, proof_of(HELLO, said.whole))
        self.say(challenge)
        kind, confirm = self.hear_frame()
        assert kind == CONFIRM
        assert holds(CONFIRM, confirm, secret, proof_of(CHALLENGE, challenge))
        return proof_of(CONFIRM, confirm)

    def hear_end(self) -> None:
        """The library closes it, or resets it; whatever it says before."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextlib.contextmanager
def dial(handle: Handle) -> Iterator[Stream]:
    with socket.create_connection(handle.address, SECONDS) as connected:
        yield Stream(connected)


@dataclass(frozen=True)
class Listener:
    """In the place of a library that listens."""

    socket: socket.socket
    handle: Handle

    def accept(self) -> Stream:
        accepted, _ = self.socket.accept()
        accepted.settimeout(SECONDS)
        return Stream(accepted)


@contextlib.contextmanager
def listen() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        yield Listener(server, Handle(os.urandom(16), server.getsockname()))
