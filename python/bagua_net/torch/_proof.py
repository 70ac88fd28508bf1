# SPDX-License-Identifier: MIT
"""How ranks with a secret (BAGUA_NET_SECRET_FILE) know each other's rows in torch's store, which whoever reaches its
port can write.

A connection proves that both ends know the secret, and not which ranks they are: rows that are exchanged, or those of
another job with the same secret, would lead to the wrong ones. So once the ranks have met, each writes a MAC beside its
row: of the row, its kind, its rank, and the identities of all ranks, which are new in each group. Who checks it knows
its own identity to be among them: the row is of this group, of that rank, and of somebody who knows the secret.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from typing import Any

from .._settings import identity, parameters

_LABEL = b"bagua-net row 1"


@functools.cache
def _secret() -> bytes:
    """Of this process; empty: it has none, or one with which the library refuses to start."""
    found = identity.of(parameters.read())
    return found.secret() if found.path and found.usable else b""


class Prover:
    """One rank's part in a group. It knows the group's identities only when it is told."""

    def __init__(self, rank: int) -> None:
        self._secret = _secret()
        self._rank = rank
        self._rows: dict[str, bytes] = {}  # what this rank has published, by kind

    @property
    def has_secret(self) -> bool:
        return self._secret != b""

    def remember(self, kind: str, row: bytes) -> None:
        self._rows[kind] = row

    def tell(self, store: Any, identities: list[str]) -> None:
        """Proves what this rank has published. Raises RuntimeError, the store's."""
        if self.has_secret:
            for kind, row in self._rows.items():
                told = identities[self._rank].encode() + self.proof(kind, self._rank, row, identities)
                store.set(f"{kind}/{self._rank}/proof", told)

    def proof(self, kind: str, rank: int, row: bytes, identities: list[str]) -> bytes:
        """Of that rank's row in the group of these identities."""
        head = f" {kind} {rank} {' '.join(identities)} ".encode()
        return hmac.new(self._secret, _LABEL + head + row, hashlib.sha256).digest()
