# SPDX-License-Identifier: MIT
"""How the ranks of a group find each other: rows of bytes in torch's store, and the library's objects that listen."""

from __future__ import annotations

import hmac
import time
from typing import Any

import torch.distributed as dist

from .._native import library
from ._meeting import Meeting
from ._proof import Prover
from ._store import GivenUp, becomes, value_of

#: The version of the network table that is used: the newest.
_API = 12


def failed(group: str, reason: str | None, rc: int) -> Exception:
    """The exception of a failed operation."""
    error: Exception = dist.DistBackendError(f"bagua_net, {group}: {reason or f'error {-rc}'}")
    return error


#: What a row begins with, after the identity: whether its rank has a secret.
_SECRET, _NO_SECRET = b"1", b"0"


class RankMissing(Exception):
    """A rank has not come to the group in time or has left it, does not belong to this job, or the wait was aborted."""


class Rendezvous:
    """Rows of bytes that every rank of a group publishes in torch's store."""

    def __init__(self, store: Any, rank: int, nranks: int) -> None:
        self._prover = Prover(rank)
        self.meeting = Meeting(store, rank, nranks, self._prover.tell)

    def publish(self, kind: str, rank: int, row: bytes) -> None:
        """Before the meeting begins."""
        self._prover.remember(kind, row)
        flag = _SECRET if self._prover.has_secret else _NO_SECRET
        self.meeting.store.set(f"{kind}/{rank}", self.meeting.identity.encode() + flag + row)

    def collect(self, kind: str, timeout_s: float, given_up: GivenUp) -> list[bytes]:
        """All ranks' rows, once they have met. Raises RankMissing, or the store's own error where it is unreachable."""
        meeting = self.meeting
        deadline = time.monotonic() + timeout_s
        meeting.wait(deadline, given_up)
        missing = meeting.missing()  # none where they met at the deadline
        if missing:
            raise RankMissing(meeting.refusal or self._absence(missing[0], timeout_s, given_up))
        identities = meeting.identities or []
        rows = [self._row(kind, rank, identity.encode()) for rank, identity in enumerate(identities)]
        if self._prover.has_secret:
            for rank, row in enumerate(rows):
                if rank != meeting.rank:
                    self._check(kind, rank, row, deadline, given_up)
        return rows

    def _absence(self, rank: int, timeout_s: float, given_up: GivenUp) -> str:
        if given_up.is_set():
            return f"aborted while rank {rank} had not made this group"
        return (
            f"rank {rank} has not made this group within {timeout_s:g} s; is that process running, "
            "and does it make the same groups in the same order, with the same backend?"
        )

    def _row(self, kind: str, rank: int, identity: bytes) -> bytes:
        row = bytes(self.meeting.store.get(f"{kind}/{rank}"))
        if not row.startswith(identity):
            raise RankMissing(f"rank {rank} has left this group, and has made it anew or was started again")
        flag, row = row[len(identity) : len(identity) + 1], row[len(identity) + 1 :]
        if (flag == _SECRET) != self._prover.has_secret:
            here, there = ("this rank", f"rank {rank}") if self._prover.has_secret else (f"rank {rank}", "this rank")
            raise RankMissing(
                f"BAGUA_NET_SECRET_FILE is set for {here}, and not for {there}: give every process of the job the same"
            )
        return row

    def _check(self, kind: str, rank: int, row: bytes, deadline: float, given_up: GivenUp) -> None:
        """The rank has proven that it is its row. The proof comes soon after the meeting."""
        meeting, told = self.meeting, b""
        identities = meeting.identities or []

        def has_come() -> bool:
            nonlocal told
            told = value_of(meeting.store, f"{kind}/{rank}/proof")
            return told.startswith(identities[rank].encode())

        if not becomes(has_come, deadline, given_up):
            raise RankMissing(f"rank {rank} has met the others, and has not proven that it knows the job's secret")
        proof = told.removeprefix(identities[rank].encode())
        if not hmac.compare_digest(proof, self._prover.proof(kind, rank, row, identities)):
            raise RankMissing(
                f"rank {rank} does not prove what torch's store says of it: its BAGUA_NET_SECRET_FILE has another "
                "secret than this process's (give every process of the job the same one), or a stranger writes to the "
                "store"
            )


class Endpoint:
    """The library's group object: it listens from the start and connects on first use."""

    def __init__(
        self, kind: str, group: str, rendezvous: Rendezvous, rank: int, nranks: int, *, collective: bool
    ) -> None:
        """``collective``: ranks compare what they call."""
        self._lib = library.load_host()
        self._kind = kind
        self._group = group
        self._rendezvous = rendezvous
        self._given_up = GivenUp()
        out = library.ffi.new("bnet_coll_t **")
        network = library.load()
        table = network.bnet_net_table(_API)
        self.check(library.ffi.NULL, self._lib.bnet_coll_create(out, table, _API, 0, rank, nranks))
        self.coll = out[0]
        try:
            self._lib.bnet_coll_look(self.coll, network.bnet_net_look())
            self._lib.bnet_coll_follow_route(self.coll)
            self._lib.bnet_coll_share(self.coll)
            if collective:
                self._lib.bnet_coll_check_calls(self.coll)
            row = library.ffi.new("char[]", self._lib.bnet_coll_handle_size(self.coll))
            self.check(self.coll, self._lib.bnet_coll_listen(self.coll, row))
            rendezvous.publish(kind, rank, bytes(library.ffi.buffer(row)))
        except BaseException:
            self._lib.bnet_coll_destroy(self.coll)
            raise

    def check(self, coll: Any, rc: int) -> None:
        if rc != 0:
            raise failed(self._group, library.text(self._lib.bnet_coll_error(coll)), rc)

    def rows(self, timeout_s: float) -> bytes:
        """All ranks' rows. Raises RankMissing, or the store's own error where it is unreachable."""
        return b"".join(self._rendezvous.collect(self._kind, timeout_s, self._given_up))

    def give_up(self) -> None:
        """Aborts the wait for other ranks' rows. From any thread."""
        self._given_up.set()

    def close(self) -> None:
        """Closes the sockets, unless another object has taken them over. Repeated calls do nothing."""
        coll, self.coll = self.coll, library.ffi.NULL
        self._lib.bnet_coll_destroy(coll)
