# SPDX-License-Identifier: MIT
"""One end of a connection over loopback, driven step by step, with a secret or without one."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.netns.steps import End, end_on
from tests.support.netns import Host

DEADLINE = 60
#: Waits for nothing but what the test does.
_SETTINGS = {"NCCL_SOCKET_IFNAME": "lo", "BAGUA_NET_BOND": 0, "BAGUA_NET_STATS": 0, "BAGUA_NET_NSTREAMS": 1}


class Here(Host):
    """This machine, in no namespace of its own. Its name is that of the end."""

    @property
    def prefix(self) -> list[str]:
        return []


def secret_file(directory: Path, secret: bytes | None) -> str:
    """Its path; of no secret, none."""
    if secret is None:
        return ""
    path = directory / f"secret-{secret.hex()[:16]}"
    if not path.exists():  # an end may be reading it
        path.touch(0o600)
        path.write_bytes(secret)
    return str(path)


def settings(directory: Path, secret: bytes | None, **more: Any) -> dict[str, Any]:
    """The variables of an end."""
    return _SETTINGS | {"BAGUA_NET_SECRET_FILE": secret_file(directory, secret)} | more


@contextlib.contextmanager
def end(directory: Path, name: str, secret: bytes | None, deadline: int = DEADLINE, **variables: Any) -> Iterator[End]:
    """name: sends if it is "sender"."""
    every = settings(directory, secret, **variables)
    with end_on(Here(name), name == "sender", directory, every, deadline) as process:
        yield process


_64 = 2**64 - 1


def _mix(value: int) -> int:
    value = value + 0x9E3779B97F4A7C15 & _64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _64
    return value ^ (value >> 31)


def payload(message: int, size: int) -> bytes:
    """What tests/drivers/drive_steps.c sends, and expects. size: a multiple of 8."""
    key = _mix(_mix(1 << 32 | 2) ^ message)
    return b"".join(struct.pack("<Q", _mix(key ^ index * 0xD1342543DE82EF95 & _64)) for index in range(size // 8))


def wait_for_end(process: End) -> str:
    """The process has failed, and not because its deadline was over. Its log."""
    process.process.wait(DEADLINE)
    log = process.log()
    assert "FAILED" in log, log
    assert "hangs" not in log, log
    return log
