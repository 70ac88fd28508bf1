# SPDX-License-Identifier: MIT
"""Settings and their values as NCCL reads them: nccl.conf files, numbers."""

from __future__ import annotations

import os
import re

#: What strtoll takes with any base.
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_MOST = 1 << 63


def parse(content: bytes) -> dict[str, str]:
    """The settings of a file as NCCL reads them: the first line for a name wins, nothing is trimmed."""
    found: dict[str, str] = {}
    for line in content.split(b"\n"):
        text, _, _ = line.removesuffix(b"\r").partition(b"\0")  # where C sees its end
        name, equals, value = text.partition(b"=")
        if equals and not line.startswith(b"#"):
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def is_number(value: str) -> bool:
    """Is the whole value a number to NCCL?"""
    return _NUMBER.fullmatch(value) is not None


def number(value: str | None) -> int:
    """A parameter's value as NCCL takes it (ncclLoadParam in its src/misc/param.cc), for one whose default is 0.

    What stands behind a number is ignored; what is no number is 0, "true" for example; one too large is the default.
    """
    found = _NUMBER.match(value or "")
    if found is None:
        return 0
    digits = found[2]
    size = int(digits, 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10)
    signed = -size if found[1] == "-" else size
    return signed if -_MOST <= signed < _MOST else 0
