# SPDX-License-Identifier: MIT
"""How the ranks of a run find each other: an all-gather of small JSON values over TCP.

One process runs a :class:`Server`; every rank, including one in that process, is a :class:`Client`. Each proves to the
other that it has the run's token, without sending it. The server closes a connection that cannot (a port scanner, a
rank of another run); of a server that cannot, a client takes no row. Every wait is bounded, and an error names the
missing ranks.

The protocol is lines of text. The server begins with a random challenge; the client answers with its proof, a challenge
of its own, its rank and the number of ranks, and then sends one line of JSON for each row. The server's lines are JSON
objects: the challenge, a welcome with its proof, the rows of all ranks in order, or an error.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Any

from ..._errors import BaguaNetError
from ..._text import printable

__all__ = ["Client", "RendezvousFailed", "Server", "new_token"]

_BACKLOG = 512
#: The longest row that a rank may contribute, in bytes of JSON.
MAX_ROW = 1 << 20
#: The longest line before the proof, in bytes. A row is put together of pieces.
_MAX_HELLO = 1 << 10
_MAX_REPLY = 1 << 28
#: Connections without a proof that are kept at a time, and for how long. Twice as many as ranks, where that is more:
#: all of them may come at once.
_MAX_STRANGERS = 64
_HELLO_SECONDS = 5.0
#: A name that nobody knows may be that of a pod which has no address yet.
_UNKNOWN_NAME_SECONDS = 30.0
#: Where no rank of another run has come: those of one network may be measuring.
_REMEDY = "; --timeout waits longer, as for long turns of --iters"


class RendezvousFailed(BaguaNetError):
    """The ranks did not all arrive, or one of them left."""


class _Closed(RendezvousFailed):
    """The connection has ended without a word."""


def new_token() -> str:
    """A random token for one run."""
    return secrets.token_hex(16)


def _proof(token: str, side: str, *words: object) -> str:
    """Of one side, "client" or "server", and all that the two have said until then."""
    return hmac.digest(token.encode(), " ".join([side, *map(str, words)]).encode(), "sha256").hex()


def _name_ranks(ranks: list[int]) -> str:
    """ "rank 2", "ranks 1 and 2", "ranks 1, 2, 3 and 4 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown, rest = ranks[:8], len(ranks) - 8
    if rest > 0:
        return f"ranks {', '.join(map(str, shown))} and {rest} more"
    return f"ranks {', '.join(map(str, shown[:-1]))} and {shown[-1]}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise RendezvousFailed(f"cannot listen on {host or '*'}:{port}: {error.strerror}") from error
    return listener


# ---- server ----


class Server:
    """Serves all-gathers among ``nranks`` ranks from its own thread, until :meth:`close`.

    Args:
        nranks: the number of ranks.
        token: the run's token; the ranks must have the same.
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
        self._token = token
        self._timeout = timeout
        self._strangers: list[asyncio.StreamWriter] = []
        self._most_strangers = max(_MAX_STRANGERS, 2 * nranks)
        self._refused = ""
        self._ranks: dict[int, asyncio.StreamWriter] = {}
        self._rows: dict[int, bytes] = {}
        self._too_late: asyncio.TimerHandle | None = None
        self._failure: str | None = None
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="bagua-net-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Drops every connection and ends the thread. Repeated calls do nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- its thread ----

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._attend, sock=self._listener, limit=_MAX_HELLO, backlog=_BACKLOG)
        await self._closing.wait()
        server.close()
        for writer in [*self._strangers, *self._ranks.values()]:
            writer.transport.abort()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its last."""
        self._strangers.append(writer)
        if len(self._strangers) > self._most_strangers:
            self._strangers.pop(0).transport.abort()
        rank = None
        try:
            try:
                rank = await asyncio.wait_for(self._admit(reader, writer), _HELLO_SECONDS)
            finally:
                if writer in self._strangers:
                    self._strangers.remove(writer)
            while rank is not None:
                self._take_row(rank, await _read_row(reader))
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            pass  # it is gone, it is silent, its line is too long, or it speaks something else
        finally:
            writer.close()
            if rank is not None:
                self._leave(rank)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """The peer's rank; None: it is none of this run. Nothing that it sends is interpreted before its proof."""
        challenge = new_token()
        _send(writer, challenge=challenge)
        proof, *words = (await reader.readline()).decode("ascii").split()
        if not secrets.compare_digest(proof, _proof(self._token, "client", challenge, *words)):
            if len(proof) == len(_proof("", "")):
                self._refused = f"; a rank of another run came from {writer.get_extra_info('peername')[0]}"
            _send(
                writer,
                error="this rendezvous belongs to another run: start all ranks with the same settings, and "
                "with the same bagua_net",
            )
            return None
        rank, nranks = map(int, words[1:])
        if nranks != self._nranks or not 0 <= rank < nranks:
            _send(writer, error=f"this run has {self._nranks} ranks, and one came as rank {rank} of {nranks}")
        elif rank in self._ranks:
            _send(writer, error=f"rank {rank} is here already; give each process its own --rank")
        else:
            self._ranks[rank] = writer
            _send(writer, proof=_proof(self._token, "server", challenge, *words))
            return rank
        return None

    def _take_row(self, rank: int, row: bytes) -> None:
        if self._failure is not None:
            _send(self._ranks[rank], error=self._failure)
            return
        if not self._rows:
            self._too_late = self._loop.call_later(self._timeout, self._miss)
        self._rows[rank] = row
        if len(self._rows) == self._nranks:
            reply = b'{"rows": [' + b",".join(self._rows[one].strip() for one in range(self._nranks)) + b"]}\n"
            self._end_round()
            for writer in self._ranks.values():
                writer.write(reply)

    def _end_round(self) -> None:
        self._rows.clear()
        if self._too_late is not None:
            self._too_late.cancel()

    def _miss(self) -> None:
        missing = {rank % self._turn for rank in range(self._nranks) if rank not in self._rows}
        self._fail(
            f"{_name_ranks(sorted(missing))} did not arrive within {self._timeout:g} s{self._refused or _REMEDY}"
        )

    def _leave(self, rank: int) -> None:
        del self._ranks[rank]
        self._rows.pop(rank, None)
        self._fail(f"rank {rank % self._turn} left the run")

    def _fail(self, reason: str) -> None:
        """Ends the run: waiting ranks get the reason now, the others with their next row."""
        self._failure = self._failure or reason
        for rank in self._rows:
            _send(self._ranks[rank], error=self._failure)
        self._end_round()


def _send(writer: asyncio.StreamWriter, **reply: str) -> None:
    writer.write(json.dumps(reply).encode() + b"\n")


async def _read_row(reader: asyncio.StreamReader) -> bytes:
    """
    Raises:
        EOFError: the connection has ended.
        ValueError: it is longer than :data:`MAX_ROW`.
    """
    row = bytearray()
    while len(row) <= MAX_ROW:
        try:
            row += await reader.readuntil()
            break
        except asyncio.LimitOverrunError as error:
            row += await reader.readexactly(error.consumed)
    if not row.endswith(b"\n") or len(row) > MAX_ROW + 1:
        raise ValueError
    return bytes(row)


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
        self._longest = _MAX_HELLO  # of an answer, until the server has proven itself
        # After its own timeout the server names the missing ranks; ours is a little longer, to receive that.
        self._patience = timeout + 5
        deadline = time.monotonic() + timeout
        while True:
            self._socket = _connect(host, port, max(0.0, deadline - time.monotonic()))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._introduce(token, rank, nranks)
                return
            except _Closed:  # strangers may have taken all places
                self.close()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
            except RendezvousFailed:
                self.close()
                raise

    def _introduce(self, token: str, rank: int, nranks: int) -> None:
        challenge = self._reply().get("challenge")
        if not isinstance(challenge, str) or not challenge.isascii():
            raise self._other_program()
        words = challenge, new_token(), rank, nranks
        self._send(" ".join(map(str, (_proof(token, "client", *words), *words[1:]))))
        proof = str(self._reply().get("proof")).encode(errors="replace")
        if not secrets.compare_digest(proof, _proof(token, "server", *words).encode()):
            raise RendezvousFailed(
                f"the server at {self._where} does not know this run's token: another program, or another bagua_net, "
                "has that port"
            )
        self._longest = _MAX_REPLY

    @property
    def local_host(self) -> str:
        """The address of this host by which it reaches the server."""
        return str(self._socket.getsockname()[0])

    @property
    def server_host(self) -> str:
        """The address by which this host reaches the server."""
        return str(self._socket.getpeername()[0])

    def all_gather(self, row: Any) -> list[Any]:
        """Every rank's row, in rank order, once all ranks have called this. Rows are what JSON can express.

        Raises:
            RendezvousFailed: a rank is missing or has left, or the server is gone.
            ValueError: the row is longer than :data:`MAX_ROW`.
        """
        line = json.dumps(row)
        if len(line) > MAX_ROW:
            raise ValueError(f"a row has at most {MAX_ROW} bytes, not {len(line)}")
        self._send(line)
        rows = self._reply().get("rows")
        if not isinstance(rows, list):
            raise self._other_program()
        return rows

    def barrier(self) -> None:
        """Returns once all ranks have called this. Raises as :meth:`all_gather` does."""
        self.all_gather(None)

    def close(self) -> None:
        """Leaves the run. Repeated calls do nothing."""
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, line: str) -> None:
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise _Closed(f"the rendezvous at {self._where} went away") from error

    def _line(self) -> bytes:
        """The server's next one: it sends one for each of ours. The limit of time is that of the whole line."""
        deadline, line = time.monotonic() + self._patience, bytearray()
        while not line.endswith(b"\n") and len(line) < self._longest:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                raise RendezvousFailed(f"the rendezvous at {self._where} does not answer") from None
            except OSError:
                piece = b""
            if not piece:
                raise _Closed(f"the rendezvous at {self._where} went away")
            line += piece
        return bytes(line)

    def _reply(self) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = dict(json.loads(self._line()))
        except (TypeError, ValueError, RecursionError):
            raise self._other_program() from None
        if "error" in reply:
            raise RendezvousFailed(printable(reply["error"]))
        return reply

    def _other_program(self) -> RendezvousFailed:
        return RendezvousFailed(f"the server at {self._where} is not a rendezvous of this program")


def _connect(host: str, port: int, timeout: float) -> socket.socket:
    started = time.monotonic()
    while True:
        left = started + timeout - time.monotonic()
        try:
            return socket.create_connection((host, port), timeout=max(0.1, left))
        except OSError as error:
            unknown = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
            if left <= 0 or (unknown and time.monotonic() - started >= _UNKNOWN_NAME_SECONDS):
                raise RendezvousFailed(
                    f"no server answers at the rendezvous {host}:{port}: {error.strerror or error}"
                ) from error
            time.sleep(1 if isinstance(error, socket.gaierror) else 0.05)  # no event reports that the server is there
