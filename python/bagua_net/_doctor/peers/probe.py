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
import secrets
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
#: Connections that are served or tried at a time, and how long one may take to say what it wants, and to send more.
MOST = 256
_SAY_S = 5.0
_SILENT_S = 30.0
#: An ICMP message that rejects a connection comes at once, and a host that is not there is asked for by ARP for three
#: seconds.
_REJECTED_S = 1.0
_NAME_BYTES = 8
#: Of struct tcp_info in linux/tcp.h: an offset and a format each.
_OPTIONS, _MSS, _RETRANSMITTED, _ACKED, _SEGMENTS = (5, "B"), (16, "I"), (100, "I"), (120, "Q"), (136, "I")
_INFO_BYTES = 232
#: The bit of _OPTIONS for TCP timestamps. Each takes so many bytes of a segment, which _MSS leaves out.
_TIMESTAMPS, _TIMESTAMP_BYTES = 1, 12


class Way(NamedTuple):
    """From an interface of this host to an address of another one."""

    source: str
    device: str
    address: str
    port: int
    #: to the device, as the plugin's streams are but to this very host and from an address of loopback
    bound: bool = True


def new_name() -> str:
    """A host's, by which its listeners are known."""
    return secrets.token_hex(_NAME_BYTES)


@dataclass(frozen=True)
class Answer:
    """What a connection has met."""

    way: Way
    #: "": it was accepted
    problem: str
    #: until it was accepted
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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        self._places = threading.Semaphore(MOST)
        self._selector = selectors.DefaultSelector()
        choice = list(ports)
        self.ports: dict[str, int] = {}
        #: why there is no listener at an address
        self.problems: dict[str, str] = {}
        for address in addresses:
            try:
                listener = _listen(address, choice)
            except OSError as error:
                self.problems[address] = error.strerror or str(error)
                continue
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
                self._accept(key.fileobj)  # type: ignore[arg-type]

    def _accept(self, listener: socket.socket) -> None:
        """Those that find no place wait in the kernel."""
        if not self._places.acquire(timeout=_SAY_S):
            return
        try:
            taken, whom = listener.accept()
            threading.Thread(target=self._attend, args=(taken, whom[0]), daemon=True).start()
        except (OSError, RuntimeError):  # it has gone; or out of descriptors, or of threads
            self._places.release()
            time.sleep(0.01)

    def _attend(self, taken: socket.socket, whom: str) -> None:
        try:
            with taken, contextlib.suppress(OSError):
                token, _, wish = _line(taken, _SAY_S).partition(b" ")
                if token != self._hello:
                    return
                taken.sendall(f"{self._name} {whom}\n".encode())
                if wish == b"take":
                    _take(taken)
        finally:
            self._places.release()


def _line(connection: socket.socket, seconds: float) -> bytes:
    line, end = bytearray(), time.monotonic() + seconds
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, end - time.monotonic()))
        piece = connection.recv(_HEADER - len(line))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "the connection ended")
        line += piece
    return bytes(line[:-1])


def _take(connection: socket.socket) -> None:
    room = bytearray(len(_BLOCK))
    connection.settimeout(_SILENT_S)
    while connection.recv_into(room):
        pass


# ---- the side that connects ----


def _connect(way: Way, mss: int = 0) -> socket.socket:
    family, (source, _, *scope) = _family(way.source)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        if mss:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        if way.bound:
            with contextlib.suppress(PermissionError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, way.device.encode() + b"\0")
        connection.bind((source, 0, *scope))
        connection.settimeout(ANSWER_S)
        connection.connect(_target(way))
    except BaseException:
        connection.close()
        raise
    return connection


def _target(way: Way) -> tuple[object, ...]:
    """The scope of a link-local address is valid on one host only: here it is the source's."""
    _, (_, _, *scope) = _family(way.source)
    return (way.address.partition("%")[0], way.port, *scope)


def _greet(connection: socket.socket, token: str, wish: str) -> tuple[str, str]:
    """The listener's name, and whom it sees.

    Raises:
        ValueError: it is none of ours.
    """
    connection.sendall(f"{token} {wish}\n".encode())
    name, seen = _line(connection, ANSWER_S).decode("ascii").split()
    if len(bytes.fromhex(name)) != _NAME_BYTES:
        raise ValueError(name)
    return name, seen


def _open(way: Way, token: str, mss: int = 0) -> socket.socket:
    """A connection whose listener takes what comes."""
    connection = _connect(way, mss)
    try:
        _greet(connection, token, "take")
        return connection
    except ValueError:
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "another program answers") from None
    except BaseException:
        connection.close()
        raise


def _problem(error: OSError, way: Way, seconds: float) -> str:
    """As people say it. A connection that is bound to an interface needs no route: the interface is asked for the
    address."""
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH) or isinstance(error, TimeoutError):
        if not _has_route(way):
            return "no route"
        return "rejected" if error.errno == errno.EHOSTUNREACH and seconds < _REJECTED_S else "no answer"
    named = {errno.ECONNREFUSED: "refused", errno.EACCES: "rejected", errno.EPERM: "forbidden by this host's firewall"}
    return named.get(error.errno or 0, error.strerror or str(error))


def _has_route(way: Way) -> bool:
    family, (source, _, *scope) = _family(way.source)
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        try:
            asker.bind((source, 0, *scope))
            asker.connect(_target(way))  # sends nothing
        except OSError:
            return False
    return True


def _look(way: Way, token: str) -> Answer:
    began = time.monotonic()
    try:
        with _connect(way) as connection:
            took = time.monotonic() - began
            name, seen = _greet(connection, token, "look")
            return Answer(way, "", took, seen, name)
    except OSError as error:
        return Answer(way, _problem(error, way, time.monotonic() - began))
    except ValueError:
        return Answer(way, "another program answers")


def look(ways: list[Way], token: str) -> list[Answer]:
    """Tries all of them, many at once."""
    if not ways:
        return []
    with ThreadPoolExecutor(min(MOST, len(ways))) as pool:
        return list(pool.map(lambda way: _look(way, token), ways))


class Passage(NamedTuple):
    """Of packets of one size."""

    passes: bool
    #: bytes behind the headers of IP and TCP
    mss: int


def passes(way: Way, token: str, mss: int = 0) -> Passage:
    """Do packets of that many bytes of data arrive? 0: of as many as the two hosts agree on.

    Raises:
        OSError: there is no connection.
    """
    end = time.monotonic() + _PASS_S
    with _open(way, token, mss) as connection:
        stamped = bool(_field(connection, _OPTIONS) & _TIMESTAMPS)
        size = _field(connection, _MSS) + _TIMESTAMP_BYTES * stamped
        connection.settimeout(_PASS_S)
        try:
            connection.sendall(bytes(_PASS_BYTES))
            while (left := _unsent(connection)) and time.monotonic() < end:
                time.sleep(0.01)
            return Passage(left == 0, size)
        except (TimeoutError, ConnectionError):
            return Passage(False, size)
        finally:
            _drop(connection)


def _field(connection: socket.socket, field: tuple[int, str]) -> int:
    """Of struct tcp_info."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(struct.unpack_from(field[1], info, field[0])[0])


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
    return _Counts(*(sum(_field(each, field) for each in flows) for field in (_ACKED, _SEGMENTS, _RETRANSMITTED)))


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
    """What the peer's kernel acknowledges of so many flows, after their first ``warm_s``.

    Raises:
        OSError: one of them has no connection, or lost it.
    """
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(flows) as pool:
            opened = [stack.enter_context(each) for each in pool.map(lambda _: _open(way, token), range(flows))]
        with _sending(opened):
            time.sleep(warm_s)
            before, began, used = _counts(opened), time.monotonic(), worked()
            time.sleep(seconds)
            after, took, used = _counts(opened), time.monotonic() - began, worked() - used
        for each in opened:
            _drop(each)
    sent = max(1, after.segments - before.segments)
    return Rate(
        flows,
        (after.acknowledged - before.acknowledged) / took,
        (after.repeated - before.repeated) / sent,
        used / took,
    )


def worked() -> float:
    """Seconds of processors that this process took."""
    times = os.times()
    return times.user + times.system
