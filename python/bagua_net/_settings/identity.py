# SPDX-License-Identifier: MIT
"""The secret by which a job's processes know each other (docs/identity.md), as far as a doctor needs to know."""

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
    #: why no process would start, if the parameters' own errors do not say so
    problem: str = ""

    @property
    def protection(self) -> str:
        """Of what streams carry."""
        return "encrypted" if self.encrypts else "with checksums" if self.checksums else "not encrypted"

    def fingerprint(self) -> str:
        """Eight digits that are alike where the secrets are. Not to be shown to others: by them, who guesses at a weak
        secret knows when he is right."""
        if not self.path:
            return "no secret"
        try:
            secret = Path(self.path).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            return f"no secret that can be read ({error.strerror})"
        return "secret " + hmac.new(secret, b"bagua-net fingerprint 1", hashlib.sha256).hexdigest()[:8]


def of(rows: Iterable[Parameter]) -> Identity:
    values = {row.name: row.value for row in rows if not row.error}
    path, encrypts = values.get(_SECRET, ""), values.get(_ENCRYPT) == "1"
    problem = "BAGUA_NET_ENCRYPT=1 needs a secret; set BAGUA_NET_SECRET_FILE" if encrypts and not path else ""
    return Identity(path, encrypts, values.get(_CHECKSUM) == "1", problem)
