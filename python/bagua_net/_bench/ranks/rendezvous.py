# SPDX-License-Identifier: MIT
"""How the ranks of a run find each other: an all-gather of small rows of bytes over TCP.

One process runs a :class:`Server`; every rank, including one in that process, is a :class:`Client`. A connection begins
with a hello that carries the run's token; the server silently drops a connection without it (a port scanner, a rank of
another run). Every wait is bounded, and an error names the missing ranks.

Wire format, little-endian. Hello: magic, token, rank, number of ranks. Then frames in both directions: u32 length
and payload. The server answers the hello and each row with one frame: a status byte, then either the rows of all ranks
in order, each preceded by its u32 length, or the text of an error.
"""

from __future__ import annotations

import hashlib
import secrets
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from ..._errors import BaguaNetError

__all__ = ["Client", "RendezvousFailed", "Server", "new_token"]

_MAGIC = b"bnetrdv1"
_TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<8s{_TOKEN_BYTES}sII")
_LENGTH = struct.Struct("<I")
_OK = b"\0"
_ERROR = b"\1"

#: The longest row that a rank may contribute, in bytes.
MAX_ROW = 1 << 20
_MAX_REPLY = 1 << 28
#: Connections without a hello that are kept at a time.
_MAX_UNIDENTIFIED = 64
_HELLO_SECONDS = 5.0
_SEND_SECONDS = 10.0


class RendezvousFailed(BaguaNetError):
    """The ranks did not all arrive, or one of them left."""


def new_token() -> str:
    """A random token for one run."""
    return secrets.token_hex(16)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _name_ranks(ranks: list[int]) -> str:
    """ "rank 2", "ranks 1 and 2", "ranks 1, 2, 3 and 4 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown, rest = ranks[:8], len(ranks) - 8
    if rest > 0:
        return f"ranks {', '.join(map(str, shown))} and {rest} more"
    return f"ranks {', '.join(map(str, shown[:-1]))} and {shown[-1]}"


# ---- server ----


@dataclass
class _Peer:
    socket: socket.socket
    deadline: float
    """Time at which a peer without a hello is dropped; seconds of the monotonic clock."""
    rank: int | None = None
    inbox: bytearray = field(default_factory=bytearray)


class Server:
    """Serves all-gathers among ``nranks`` ranks from its own thread, until :meth:`close`.

    Args:
        nranks: the number of ranks.
        token: the run's token; the ranks must show the same.
        host: address to listen on; "": all addresses of this host.
        port: 0 takes any free one, which is then in :attr:`port`.
        timeout: seconds that an all-gather may take from its first row to its last.
        turn: where several of the ranks here are processes of one rank, the number of those: this server's number i is
            a process of rank i modulo ``turn``, and errors name that. 0: each is a rank.

    Raises:
        RendezvousFailed: it cannot listen on the address.
    """

    def __init__(
        self,
        nranks: int,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        timeout: float = 120.0,
        *,
        turn: int = 0,
    ) -> None:
        self._nranks = nranks
        self._turn = turn or nranks
        self._token = _digest(token)
        self._timeout = timeout
        try:
            both = not host and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=both)
        except OSError as error:
            raise RendezvousFailed(f"cannot listen on {host or '*'}:{port}: {error.strerror}") from error
        self.port: int = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        self._joined: dict[int, _Peer] = {}
        self._rows: dict[int, bytes] = {}
        self._round_deadline = 0.0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._serve, name="bagua-net-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Drops every connection and ends the thread. Repeated calls do nothing."""
        if self._thread.is_alive():
            self._wake_write.send(b"x")
            self._thread.join()
        for sock in (self._wake_read, self._wake_write):
            sock.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while self._step():
                pass
        finally:
            for sock in [self._listener, *self._peers]:
                sock.close()
            self._selector.close()

    def _step(self) -> bool:
        """Waits for events once and handles them. False: :meth:`close` was called."""
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self._wake_read:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peers:
                self._read(self._peers[key.fileobj])
        self._expire()
        return True

    def _patience(self) -> float | None:
        deadlines = [peer.deadline for peer in self._peers.values() if peer.rank is None]
        if self._rows:
            deadlines.append(self._round_deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _expire(self) -> None:
        now = time.monotonic()
        for peer in [p for p in self._peers.values() if p.rank is None and p.deadline <= now]:
            self._drop(peer)
        if self._rows and self._round_deadline <= now:
            missing = {rank % self._turn for rank in range(self._nranks) if rank not in self._rows}
            self._fail(f"{_name_ranks(sorted(missing))} did not arrive within {self._timeout:g} s")

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the peer has left, or no descriptor is free: the rank tries again
        unidentified = [peer for peer in self._peers.values() if peer.rank is None]
        if len(unidentified) >= _MAX_UNIDENTIFIED:
            self._drop(unidentified[0])
        sock.settimeout(_SEND_SECONDS)
        self._peers[sock] = _Peer(sock, time.monotonic() + _HELLO_SECONDS)
        self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.inbox += data
        if peer.rank is None and len(peer.inbox) >= _HELLO.size:
            self._admit(peer)
        if peer.rank is not None:
            self._take_row(peer, peer.rank)

    def _admit(self, peer: _Peer) -> None:
        magic, token, rank, nranks = _HELLO.unpack_from(peer.inbox)
        del peer.inbox[: _HELLO.size]
        if magic != _MAGIC or not secrets.compare_digest(token, self._token):
            self._drop(peer)
        elif nranks != self._nranks or rank >= self._nranks:
            self._refuse(peer, f"this run has {self._nranks} ranks, and one came as rank {rank} of {nranks}")
        elif rank in self._joined:
            self._refuse(peer, f"rank {rank} is here already; give each process its own --rank")
        else:
            peer.rank = rank
            self._joined[rank] = peer
            self._send(peer, _OK)

    def _take_row(self, peer: _Peer, rank: int) -> None:
        if len(peer.inbox) < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(peer.inbox)
        if length > MAX_ROW:
            self._drop(peer)
            return
        end = _LENGTH.size + length
        if len(peer.inbox) < end or rank in self._rows:
            return
        row = bytes(peer.inbox[_LENGTH.size : end])
        del peer.inbox[:end]
        if self._failure is not None:
            self._send(peer, _ERROR + self._failure.encode())
            return
        if not self._rows:
            self._round_deadline = time.monotonic() + self._timeout
        self._rows[rank] = row
        if len(self._rows) == self._nranks:
            self._finish_round()

    def _finish_round(self) -> None:
        parts = [_LENGTH.pack(len(self._rows[rank])) + self._rows[rank] for rank in range(self._nranks)]
        self._rows.clear()
        reply = _OK + b"".join(parts)
        for peer in list(self._joined.values()):
            self._send(peer, reply)

    def _fail(self, reason: str) -> None:
        """Ends the run: waiting ranks get the reason now, the others with their next row."""
        self._failure = self._failure or reason
        waiting = [self._joined[rank] for rank in self._rows if rank in self._joined]
        self._rows.clear()
        for peer in waiting:
            self._send(peer, _ERROR + self._failure.encode())

    def _refuse(self, peer: _Peer, reason: str) -> None:
        self._send(peer, _ERROR + reason.encode())
        self._drop(peer)

    def _send(self, peer: _Peer, payload: bytes) -> None:
        try:
            peer.socket.sendall(_LENGTH.pack(len(payload)) + payload)
        except OSError:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.socket, None) is None:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.rank is not None:
            self._joined.pop(peer.rank, None)
            self._rows.pop(peer.rank, None)
            self._fail(f"rank {peer.rank % self._turn} left the run")


# ---- client ----


class Client:
    """One rank's side. For one thread at a time.

    Args:
        host, port: of the server, which may start later.
        timeout: seconds to wait for the server, and then for each answer.

    Raises:
        RendezvousFailed: no server listens there, it belongs to another run, or it refuses this rank.
    """

    def __init__(self, host: str, port: int, token: str, rank: int, nranks: int, timeout: float = 120.0) -> None:
        self._where = f"{host}:{port}"
        self._timeout = timeout
        self._socket = self._connect(host, port)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(_HELLO.pack(_MAGIC, _digest(token), rank, nranks))
            self._reply("it belongs to another run: start all ranks with the same settings")
        except OSError as error:
            self.close()
            raise RendezvousFailed(f"the rendezvous at {self._where} is unreachable: {error}") from error
        except RendezvousFailed:
            self.close()
            raise

    def _connect(self, host: str, port: int) -> socket.socket:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
            except OSError as error:
                if time.monotonic() >= deadline or isinstance(error, socket.gaierror):
                    raise RendezvousFailed(
                        f"no server answers at the rendezvous {self._where}: {error.strerror or error}"
                    ) from error
                time.sleep(0.05)  # the server may start after us, and no event reports that

    @property
    def local_host(self) -> str:
        """The address of this host by which it reaches the server."""
        return str(self._socket.getsockname()[0])

    def all_gather(self, row: bytes) -> list[bytes]:
        """Every rank's row, in rank order, once all ranks have called this.

        Raises:
            RendezvousFailed: a rank is missing or has left, or the server is gone.
            ValueError: the row is longer than :data:`MAX_ROW`.
        """
        if len(row) > MAX_ROW:
            raise ValueError(f"a row has at most {MAX_ROW} bytes, not {len(row)}")
        try:
            self._socket.sendall(_LENGTH.pack(len(row)) + row)
        except OSError as error:
            raise RendezvousFailed(f"the rendezvous at {self._where} went away") from error
        body = self._reply("it went away")
        rows = []
        while body:
            end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
            rows.append(body[_LENGTH.size : end])
            body = body[end:]
        return rows

    def barrier(self) -> None:
        """Returns once all ranks have called this. Raises as :meth:`all_gather` does."""
        self.all_gather(b"")

    def close(self) -> None:
        """Leaves the run. Repeated calls do nothing."""
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reply(self, if_closed: str) -> bytes:
        # After its own timeout the server names the missing ranks; ours is a little longer, to receive that.
        deadline = time.monotonic() + self._timeout + 5
        try:
            (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size, deadline))
            if not 1 <= length <= _MAX_REPLY:
                raise RendezvousFailed(f"the server at {self._where} is not a rendezvous of this program")
            reply = self._read_exactly(length, deadline)
        except TimeoutError:
            raise RendezvousFailed(f"the rendezvous at {self._where} does not answer") from None
        except OSError:
            raise RendezvousFailed(f"the rendezvous at {self._where} closed: {if_closed}") from None
        if reply[:1] != _OK:
            raise RendezvousFailed(reply[1:].decode(errors="replace"))
        return reply[1:]

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            part = self._socket.recv(min(size - len(data), 1 << 16))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return bytes(data)
