# SPDX-License-Identifier: MIT
"""The secret by which a job's processes know each other (docs/identity.md), as far as Python needs to know."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .parameters import Parameter

_SECRET, _ENCRYPT, _CHECKSUM = "BAGUA_NET_SECRET_FILE", "BAGUA_NET_ENCRYPT", "BAGUA_NET_CHECKSUM"


@dataclass(frozen=True)
class Identity:
    """Of a job in this environment."""

    #: the file of its secret; empty: it has none
    path: str
    encrypts: bool
    checksums: bool
    #: why no process would start
    problem: str = ""
    #: whether the file will do
    usable: bool = True

    @property
    def protection(self) -> str:
        """Of what streams carry."""
        return "encrypted" if self.encrypts else f"not encrypted, {'with' if self.checksums else 'no'} checksums"

    def secret(self) -> bytes:
        """As the library reads it. Raises OSError."""
        return Path(self.path).read_bytes().rstrip(b"\r\n")

    def fingerprint(self) -> str:
        """Eight digits that are alike where the secrets are. Not to be shown to others: by them, who guesses at a weak
        secret knows when he is right."""
        if not self.path:
            return "no secret"
        if not self.usable:  # it may be no file that can be read to its end
            return "no secret that can be used"
        try:
            secret = self.secret()
        except OSError as error:
            return f"no secret that can be read ({error.strerror})"
        return "secret " + hmac.new(secret, b"bagua-net fingerprint 1", hashlib.sha256).hexdigest()[:8]


def of(rows: Iterable[Parameter]) -> Identity:
    named = {row.name: row for row in rows if row.name in (_SECRET, _ENCRYPT, _CHECKSUM)}
    bad = [name for name, row in named.items() if row.error]
    values = {name: row.value for name, row in named.items()}
    path, encrypts = values.get(_SECRET, ""), values.get(_ENCRYPT) == "1"
    problem = f"{' and '.join(bad)} will not do; see that line" if bad else ""
    return Identity(path, encrypts, values.get(_CHECKSUM) == "1", problem, _SECRET not in bad)
