# SPDX-License-Identifier: MIT
"""The secret by which a job's processes know each other (docs/identity.md), as far as a doctor needs to know."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from .parameters import Parameter

SECRET, ENCRYPT = "BAGUA_NET_SECRET_FILE", "BAGUA_NET_ENCRYPT"


def state(rows: Iterable[Parameter]) -> str:
    """In words: a secret that can be used, by eight digits that are alike where secrets are, and whether streams are
    encrypted. "none": there is no secret."""
    values = {row.name: row.value for row in rows if row.name in (SECRET, ENCRYPT) and not row.error}
    path = values.get(SECRET, "")
    if not path:
        return "none"
    try:
        secret = Path(path).read_bytes().rstrip(b"\r\n")
    except OSError:
        return "none"
    shown = hmac.new(secret, b"bagua-net fingerprint 1", hashlib.sha256).hexdigest()[:8]
    return f"secret {shown}, {'encrypted' if values.get(ENCRYPT) == '1' else 'not encrypted'}"
