# SPDX-License-Identifier: MIT
"""Connections that a process tries and that nobody answers, as behind a firewall that drops packets.

Source: the kernel's lists of TCP sockets, proc(5), and the states of include/net/tcp_states.h.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from pathlib import Path

_SYN_SENT = "02"
_TARGET, _STATE, _INODE = 2, 3, 9


def of(pid: int) -> list[tuple[str, int]]:
    """Where they lead: addresses and ports. None of a process that has gone, or that this user may not inspect."""
    sockets = _sockets(pid)
    rows = [row.split() for name in ("tcp", "tcp6") for row in _rows(Path(f"/proc/{pid}/net/{name}"))]
    return [_target(row[_TARGET]) for row in rows if row[_STATE] == _SYN_SENT and row[_INODE] in sockets]


def _rows(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []


def _sockets(pid: int) -> set[str]:
    """Their inodes."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def _target(text: str) -> tuple[str, int]:
    """Of "0200090A:9C40": the address is words of four bytes in this host's order, the port is a number."""
    digits, _, port = text.partition(":")
    words = (int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)
