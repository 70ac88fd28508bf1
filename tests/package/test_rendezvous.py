# SPDX-License-Identifier: MIT
"""The rendezvous over real sockets: which peers may take part, and what the ranks are told when one is missing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagua_net._bench.ranks import rendezvous
from bagua_net._bench.ranks.rendezvous import Client, RendezvousFailed, Server

TOKEN = "a token of this test"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def in_ranks(server: Server, nranks: int, work: Callable[[Client, int], object]) -> list[object]:
    """work(client, rank) in one thread per rank; results in rank order."""

    def body(rank: int) -> object:
        with Client("127.0.0.1", server.port, TOKEN, rank, nranks, timeout=20) as client:
            return work(client, rank)

    with ThreadPoolExecutor(nranks) as executor:
        return list(executor.map(body, range(nranks)))


@pytest.mark.parametrize("nranks", [1, 2, 5])
def test_all_ranks_get_all_rows_in_order(nranks: int) -> None:
    def rounds(client: Client, rank: int) -> list[list[list[int]]]:
        return [client.all_gather([rank, number]) for number in range(20)]

    expected = [[[rank, number] for rank in range(nranks)] for number in range(20)]
    with Server(nranks, TOKEN, timeout=20) as server:
        assert in_ranks(server, nranks, rounds) == [expected] * nranks


@settings(max_examples=25, deadline=None)
@given(st.lists(st.recursive(st.none() | st.text() | st.integers(), st.lists), min_size=1, max_size=4))
def test_rows_of_any_kind(rows: list[object]) -> None:
    with Server(len(rows), TOKEN, timeout=20) as server:
        assert in_ranks(server, len(rows), lambda c, rank: c.all_gather(rows[rank])) == [rows] * len(rows)


def test_the_longest_row_passes_and_a_longer_one_is_refused_here() -> None:
    longest = "x" * (rendezvous.MAX_ROW - 2)  # and its quotes
    with Server(1, TOKEN, timeout=20) as server, Client("127.0.0.1", server.port, TOKEN, 0, 1) as client:
        with pytest.raises(ValueError, match="at most"):
            client.all_gather(longest + "x")
        assert client.all_gather(longest) == [longest]


def closed_by_server(sock: socket.socket) -> bool:
    sock.settimeout(20)
    try:
        while sock.recv(1 << 10):
            pass  # the challenge
        return True
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: somebody-scanning\r\n\r\n" + b" " * 64,
        b"\xff" * 4096,
        b"\n",
        f"{'0' * 64} 0 2\n".encode(),
        f"{'0' * 64}\n".encode(),
    ],
    ids=["http", "noise", "empty line", "wrong token", "wrong token alone"],
)
def test_connections_without_a_proof_are_rejected_and_the_run_goes_on(garbage: bytes, pool: ThreadPoolExecutor) -> None:
    with Server(2, TOKEN, timeout=20) as server:
        silent = socket.create_connection(("127.0.0.1", server.port))
        first = pool.submit(lambda: Client("127.0.0.1", server.port, TOKEN, 0, 2).all_gather("zero"))
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(garbage)
            assert closed_by_server(peer)
        with Client("127.0.0.1", server.port, TOKEN, 1, 2) as second:
            assert second.all_gather("one") == ["zero", "one"]
        assert first.result(20) == ["zero", "one"]
        silent.close()


def test_a_line_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_HELLO_SECONDS", 1000)
    with Server(1, TOKEN, timeout=20) as server, socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(b"0" * 4096)
        assert closed_by_server(peer)


def test_a_silent_connection_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_HELLO_SECONDS", 0.05)
    with (
        Server(1, TOKEN, timeout=20) as server,
        socket.create_connection(("127.0.0.1", server.port)) as peer,
    ):
        assert closed_by_server(peer)


def test_many_silent_connections_leave_room_for_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_HELLO_SECONDS", 1000)
    with Server(1, TOKEN, timeout=20) as server:
        unidentified = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        with Client("127.0.0.1", server.port, TOKEN, 0, 1, timeout=20) as client:
            assert client.all_gather("x") == ["x"]
        assert closed_by_server(unidentified[0])
        for peer in unidentified:
            peer.close()


def test_all_ranks_may_come_at_once(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts them all before it hears one."""
    ranks = 2 * rendezvous._MAX_STRANGERS
    with Server(ranks, TOKEN, timeout=20) as server:
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(ranks)]
        assert all(peer.recv(1, socket.MSG_PEEK) for peer in peers)
        for peer in peers:
            peer.close()


def test_a_rank_that_strangers_displaced_comes_again(pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rank = pool.submit(lambda: Client("127.0.0.1", port, TOKEN, 0, 1, timeout=20).all_gather("here"))
        listener.accept()[0].close()
    with Server(1, TOKEN, port=port, timeout=20):
        assert rank.result(20) == ["here"]


def test_another_run_s_token_is_an_error_that_says_so_on_both_sides() -> None:
    with Server(2, TOKEN, timeout=1) as server, Client("127.0.0.1", server.port, TOKEN, 0, 2, timeout=20) as client:
        with pytest.raises(RendezvousFailed, match="another run"):
            Client("127.0.0.1", server.port, "another token", 1, 2, timeout=20)
        with pytest.raises(
            RendezvousFailed, match=r"rank 1 did not arrive within 1 s; a rank of another run came from 127\.0\.0\.1$"
        ):
            client.all_gather(None)


def test_a_token_is_not_sent(pool: ThreadPoolExecutor) -> None:
    """A port that only passes everything on sees a proof, which is another one for each connection."""
    seen = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as between, Server(1, TOKEN, timeout=20) as server:
            client = pool.submit(Client, "127.0.0.1", between.getsockname()[1], TOKEN, 0, 1, 20)
            ours, _ = between.accept()
            with ours, socket.create_connection(("127.0.0.1", server.port)) as theirs:
                ours.sendall(theirs.recv(1 << 10))
                seen.append(ours.recv(1 << 10))
                theirs.sendall(seen[-1])
                ours.sendall(theirs.recv(1 << 10))
                client.result(20).close()
    assert TOKEN.encode() not in b"".join(seen)
    assert len(set(seen)) == 2


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-server\r\n", b"5\n", b"[1]\n", b'{"challenge": "\\ud800"}\n', b"[" * 1000 + b"\n"]
)
def test_another_service_is_an_error_that_says_so(greeting: bytes, pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        client = pool.submit(Client, "127.0.0.1", service.getsockname()[1], TOKEN, 0, 1, 20)
        peer, _ = service.accept()
        with peer:
            peer.sendall(greeting)
            with pytest.raises(RendezvousFailed, match="is not a rendezvous of this program"):
                client.result(20)


@pytest.mark.parametrize("welcome", [{}, {"proof": "0" * 64}, {"proof": "é"}, {"rows": [{"ask": "the secret"}]}])
def test_a_server_that_does_not_know_the_token_is_not_heeded(welcome: object, pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        client = pool.submit(Client, "127.0.0.1", impostor.getsockname()[1], TOKEN, 0, 1, 20)
        peer, _ = impostor.accept()
        with peer:
            peer.sendall(b'{"challenge": "x"}\n')
            assert peer.recv(1 << 10)
            peer.sendall(json.dumps(welcome).encode() + b"\n")
            with pytest.raises(RendezvousFailed, match="does not know this run's token"):
                client.result(20)


def test_a_row_longer_than_allowed_costs_the_sender_its_place() -> None:
    with Server(1, TOKEN) as server, Client("127.0.0.1", server.port, TOKEN, 0, 1, timeout=20) as client:
        client._socket.sendall(b"x" * (rendezvous.MAX_ROW + 1))
        with pytest.raises(RendezvousFailed, match=r"closed|went away"):
            client.all_gather(None)


def test_missing_ranks_are_named() -> None:
    with (
        Server(4, TOKEN, timeout=1) as server,
        Client("127.0.0.1", server.port, TOKEN, 1, 4, timeout=20) as client,
        pytest.raises(RendezvousFailed, match=r"ranks 0, 2 and 3 did not arrive within 1 s"),
    ):
        client.all_gather(None)


def test_a_rank_that_leaves_is_named_to_those_who_wait_and_to_those_who_come_later() -> None:
    with Server(3, TOKEN, timeout=20) as server:
        clients = [Client("127.0.0.1", server.port, TOKEN, rank, 3, timeout=20) for rank in range(3)]
        heard: list[str] = []

        def wait() -> None:
            try:
                clients[0].all_gather(None)
            except RendezvousFailed as error:
                heard.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        clients[2].close()
        waiting.join(20)
        assert heard == ["rank 2 left the run"]
        with pytest.raises(RendezvousFailed, match="rank 2 left the run"):
            clients[1].all_gather(None)
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    ("rank", "nranks", "reason"),
    [(0, 2, "rank 0 is here already"), (1, 3, "this run has 2 ranks"), (2, 2, "this run has 2 ranks")],
)
def test_a_rank_that_does_not_fit_is_told_why(rank: int, nranks: int, reason: str) -> None:
    with (
        Server(2, TOKEN, timeout=20) as server,
        Client("127.0.0.1", server.port, TOKEN, 0, 2, timeout=20),
        pytest.raises(RendezvousFailed, match=reason),
    ):
        Client("127.0.0.1", server.port, TOKEN, rank, nranks, timeout=20)


def test_nobody_listening_is_an_error_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RendezvousFailed, match=f"127.0.0.1:{port}"):
        Client("127.0.0.1", port, TOKEN, 0, 1, timeout=0.2)


def test_a_client_waits_for_a_server_that_starts_later(pool: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    row = pool.submit(lambda: Client("127.0.0.1", port, TOKEN, 0, 1, timeout=20).all_gather("late"))
    with Server(1, TOKEN, port=port, timeout=20):
        assert row.result(20) == ["late"]


def test_a_port_in_use_is_an_error_with_the_address() -> None:
    with Server(1, TOKEN) as server, pytest.raises(RendezvousFailed, match=f"127.0.0.1:{server.port}"):
        Server(1, TOKEN, port=server.port)


def test_a_client_hears_that_the_server_went_away() -> None:
    server = Server(2, TOKEN, timeout=20)
    client = Client("127.0.0.1", server.port, TOKEN, 0, 2, timeout=20)
    server.close()
    with pytest.raises(RendezvousFailed, match="went away"):
        client.all_gather(None)
    client.close()
