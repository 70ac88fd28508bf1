# SPDX-License-Identifier: MIT
"""Standard streams that cannot take what the command prints: closed ones, and those of another encoding."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

#: What the command's own text has beside ASCII.
_PLAIN = {"…": b"...", "→": b"->", "←": b"<-", "×": b"x", "µ": b"u", "█": b"#", "·": b"."}
_HANDLER = "bagua_net.plain"


def _bytes_of(char: str) -> bytes:
    """A path gets the bytes that the file system has for it."""
    try:
        return _PLAIN.get(char) or os.fsencode(char)
    except UnicodeEncodeError:
        return b"?"


def _plain(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return b"".join(map(_bytes_of, error.object[error.start : error.end])), error.end


def prepare() -> None:
    """Makes printing safe: a closed stream swallows what it gets, and another encoding gets plain characters."""
    codecs.register_error(_HANDLER, _plain)
    for name in ("stdin", "stdout", "stderr"):  # in this order the descriptors 0 to 2 are theirs again
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
            stream.reconfigure(errors=_HANDLER)
