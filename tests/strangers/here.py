# SPDX-License-Identifier: MIT
"""One end of a connection over loopback, driven step by step, with a secret or without one."""

from __future__ import annotations

import contextlib
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


def wait_for_end(process: End) -> str:
    """The process has failed, and not because its deadline was over. Its log."""
    process.process.wait(DEADLINE)
    log = process.log()
    assert "FAILED" in log, log
    assert "hangs" not in log, log
    return log
