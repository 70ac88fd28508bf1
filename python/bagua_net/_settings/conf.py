# SPDX-License-Identifier: MIT
"""The settings in an nccl.conf file, read as NCCL reads them."""

from __future__ import annotations

import os


def parse(content: bytes) -> dict[str, str]:
    """The settings of a file as NCCL reads them: the first line for a name wins, nothing is trimmed."""
    found: dict[str, str] = {}
    for line in content.split(b"\n"):
        text, _, _ = line.removesuffix(b"\r").partition(b"\0")  # where C sees its end
        name, equals, value = text.partition(b"=")
        if equals and not line.startswith(b"#"):
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found
