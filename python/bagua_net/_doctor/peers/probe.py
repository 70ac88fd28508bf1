# SPDX-License-Identifier: MIT
"""Connections between two hosts: is there an answer, do full packets pass, how much do so many flows carry?

They are plain TCP, without the plugin, bound to an interface as its streams are. A listener serves only who knows the
run's token: it says whose it is and whom it sees, or takes what comes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

#: Linux answers a SYN that is lost after one second, and after three.
ANSWER_S = 4.0
#: A full packet that is lost is sent again after 0.2 s, 0.4 s, …
_PASS_S = 4.0
_PASS_BYTES = 128 << 10
_BLOCK = bytes(1 << 20)
_HEADER = 256
#: Connections that are served at a time, and how long one may take to say what it wants.
_MOST = 256
_SAY_S = 5.0
#: Of struct tcp_info in linux/tcp.h: an offset and a format each.
_MSS, _RETRANSMITTED, _ACKED, _SEGMENTS = (16, "I"), (100, "I"), (120, "Q"), (136, "I")
_INFO_BYTES = 232


class Way(NamedTuple):
    """From an interface of this host to an address of another one."""

    source: str
    device: str
    address: str
    port: int


@dataclass(frozen=True)
class Answer:
    """What a connection has met."""

    way: Way
    #: "": it was accepted
    problem: str
    seconds: float = 0.0
    #: this host's address, as the other one sees it
    seen: str = ""
    #: whose listener it was
    name: str = ""


@dataclass(frozen=True)
class Rate:
    """Of so many flows together."""

    flows: int
    bytes_per_second: float
    #: packets that were sent again, of all
    repeated: float
    #: processors that this host's part took
    processors: float


# ---- the side that listens ----


def _family(address: str) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    return family, where


def _listen(address: str, ports: Iterable[int]) -> socket.socket:
    """At the first of these ports that is free."""
    family, (host, _, *scope) = _family(address)
    problem = OSError(errno.EADDRINUSE, "no port is free")
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((host, port, *scope))
            listener.listen()
            return listener
        except OSError as error:
            listener.close()
            problem = error
    raise problem


class Listeners:
    """At each of these addresses, served by a thread until :meth:`close`.

    Args:
        ports: of the first one that is free; 0: any.
    """

    def __init__(self, name: str, token: str, addresses: Iterable[str], ports: Iterable[int]) -> None:
        self._hello = token.encode()
        self._name = name
        self._places = threading.Semaphore(_MOST)
        self._selector = selectors.DefaultSelector()
        choice = list(ports)
        self.ports: dict[str, int] = {}
        for address in addresses:
            with contextlib.suppress(OSError):  # an address that has gone: nobody reaches it
                listener = _listen(address, choice)
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ)
                self.ports[address] = listener.getsockname()[1]
        self._wake, asleep = socket.socketpair()
        self._selector.register(asleep, selectors.EVENT_READ, "end")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == "end":
                    for each in list(self._selector.get_map().values()):
                        each.fileobj.close()  # type: ignore[union-attr]
                    self._selector.close()
                    return
                with contextlib.suppress(OSError):
                    taken, whom = key.fileobj.accept()  # type: ignore[union-attr]
                    if self._places.acquire(blocking=False):
                        threading.Thread(target=self._attend, args=(taken, whom[0]), daemon=True).start()
                    else:
                        taken.close()

    def _attend(self, taken: socket.socket, whom: str) -> None:
        try:
            with taken, contextlib.suppress(OSError):
                taken.settimeout(_SAY_S)
                token, _, wish = _line(taken).partition(b" ")
                if token != self._hello:
                    return
                taken.sendall(f"{self._name} {whom}\n".encode())
                if wish == b"take":
                    _take(taken)
        finally:
            self._places.release()


def _line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(_HEADER - len(line))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "the connection ended")
        line += piece
    return bytes(line[:-1])


def _take(connection: socket.socket) -> None:
    room = bytearray(len(_BLOCK))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    while connection.recv_into(room):
        pass


# ---- the side that connects ----


def _connect(way: Way, seconds: float, mss: int = 0) -> socket.socket:
    family, _ = _family(way.source)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        if mss:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        with contextlib.suppress(PermissionError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, way.device.encode() + b"\0")
        _, (source, _, *scope) = _family(way.source)
        connection.bind((source, 0, *scope))
        connection.settimeout(seconds)
        connection.connect((way.address, way.port))
    except BaseException:
        connection.close()
        raise
    return connection


def _open(way: Way, token: str, wish: str, mss: int = 0) -> tuple[socket.socket, list[str]]:
    """A connection that the listener has answered, and the answer's words."""
    connection = _connect(way, ANSWER_S, mss)
    try:
        connection.sendall(f"{token} {wish}\n".encode())
        return connection, _line(connection).decode(errors="replace").split()
    except BaseException:
        connection.close()
        raise


def _problem(error: OSError, way: Way) -> str:
    if isinstance(error, TimeoutError):
        return "no answer" if _has_route(way) else "no route"
    named = {errno.ECONNREFUSED: "refused", errno.ENETUNREACH: "no route", errno.EHOSTUNREACH: "no route"}
    return named.get(error.errno or 0, error.strerror or str(error))


def _has_route(way: Way) -> bool:
    """A connection that is bound to an interface goes without one: the interface is asked for the address."""
    family, (source, _, *scope) = _family(way.source)
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        try:
            asker.bind((source, 0, *scope))
            asker.connect((way.address, way.port))  # sends nothing
        except OSError:
            return False
    return True


def _look(way: Way, token: str) -> Answer:
    began = time.monotonic()
    try:
        connection, (name, seen) = _open(way, token, "look")
    except OSError as error:
        return Answer(way, _problem(error, way))
    except ValueError:
        return Answer(way, "another program answers")
    connection.close()
    return Answer(way, "", time.monotonic() - began, seen, name)


def look(ways: list[Way], token: str) -> list[Answer]:
    """Tries all of them at once."""
    if not ways:
        return []
    with ThreadPoolExecutor(min(_MOST, len(ways))) as pool:
        return list(pool.map(lambda way: _look(way, token), ways))


def passes(way: Way, token: str, mss: int = 0) -> bool:
    """Do packets of that many bytes of data arrive? 0: of as many as the two hosts agree on."""
    connection, _ = _open(way, token, "take", mss)
    with connection:
        end = time.monotonic() + _PASS_S
        connection.settimeout(_PASS_S)
        try:
            connection.sendall(bytes(_PASS_BYTES))
            while _unsent(connection) and time.monotonic() < end:
                time.sleep(0.01)
            return _unsent(connection) == 0
        except TimeoutError:
            return False
        finally:
            _drop(connection)


def _unsent(connection: socket.socket) -> int:
    """Bytes that the peer's kernel has not acknowledged."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])


def _drop(connection: socket.socket) -> None:
    """Without what is on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Counts(NamedTuple):
    acknowledged: int
    segments: int
    repeated: int


def _counts(flows: list[socket.socket]) -> _Counts:
    def total(field: tuple[int, str]) -> int:
        infos = (each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES) for each in flows)
        return sum(int(struct.unpack_from(field[1], info, field[0])[0]) for info in infos)

    return _Counts(total(_ACKED), total(_SEGMENTS), total(_RETRANSMITTED))


@contextlib.contextmanager
def _sending(flows: list[socket.socket]) -> Iterator[None]:
    """A thread for each, as much as it takes."""
    over = threading.Event()

    def send(flow: socket.socket) -> None:
        flow.settimeout(0.1)
        with contextlib.suppress(ConnectionError):
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    flow.send(_BLOCK)

    threads = [threading.Thread(target=send, args=(flow,), daemon=True) for flow in flows]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def rate(way: Way, token: str, flows: int, warm_s: float, seconds: float) -> Rate:
    """What the peer's kernel acknowledges of so many flows, after their first ``warm_s``."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_open(way, token, "take")[0]) for _ in range(flows)]
        with _sending(opened):
            time.sleep(warm_s)
            before, began, worked = _counts(opened), time.monotonic(), _worked()
            time.sleep(seconds)
            after, took, used = _counts(opened), time.monotonic() - began, _worked() - worked
        for each in opened:
            _drop(each)
    sent = max(1, after.segments - before.segments)
    return Rate(
        flows,
        (after.acknowledged - before.acknowledged) / took,
        (after.repeated - before.repeated) / sent,
        used / took,
    )


def _worked() -> float:
    """Seconds of processors that this process took."""
    times = os.times()
    return times.user + times.system
