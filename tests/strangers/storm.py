# SPDX-License-Identifier: MIT
"""Strangers in numbers: a process that opens connections to a listener, a thousand a second or so, and says on each
what no rank says.

    with storm.against(handle, rate=1000) as strangers:
        ...
    strangers.opened        # how many there were
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.strangers import protocol
from tests.strangers.protocol import Handle
from tests.support import programs

#: Each is open at most so long; those that say nothing or too little are.
_PATIENCE_S = 2.0
#: Connections that are open at a time.
_MOST_OPEN = 400


@dataclass
class Storm:
    opened: int = 0


@contextlib.contextmanager
def against(handle: Handle, rate: int, prefix: tuple[str, ...] = ()) -> Iterator[Storm]:
    """prefix: words that run a command elsewhere."""
    strangers = Storm()
    command = [*prefix, sys.executable, "-m", __name__, handle.text(), str(rate)]
    with subprocess.Popen(
        command, cwd=programs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "begun\n"
            yield strangers
            assert process.poll() is None, "the storm has ended by itself"
            assert process.stdin
            process.stdin.close()
            strangers.opened = int(process.stdout.readline())
        finally:
            process.kill()


def _sayings(handle: Handle) -> list[bytes]:
    right = protocol.hello(handle, secret=b"a stranger's own secret")
    return [
        b"",  # it closes at once, or stays silent
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(64),
        right[:40],  # half a HELLO
        right,
        protocol.hello(handle, connection=random.getrandbits(63)),
        protocol.hello(handle, stream=1, serial=2, repairs=1, connection=random.getrandbits(63)),
        protocol.hello(Handle(bytes(16), handle.address)),  # of another job
        protocol.question(handle),
        protocol.frame(protocol.HELLO, b"x" * 400),
        protocol.frame(protocol.HELLO, b"", 2**32 - 1),
    ]


def _main(text: str, rate: int) -> None:
    handle = Handle.parse(text)
    sayings, chosen = _sayings(handle), random.Random(1)
    open_since: dict[socket.socket, float] = {}
    opened, begun = 0, time.monotonic()
    print("begun", flush=True)
    with selectors.DefaultSelector() as ended:
        ended.register(sys.stdin, selectors.EVENT_READ)
        while not ended.select(0.001):
            now = time.monotonic()
            while opened < (now - begun) * rate:
                stranger = socket.socket()
                stranger.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    stranger.connect(handle.address)
                open_since[stranger] = now
                opened += 1
            for each, since in list(open_since.items()):
                said = False
                with contextlib.suppress(OSError):
                    if now - since < 0.01:
                        each.send(chosen.choice(sayings))
                    said = chosen.random() < 0.02
                if said or now - since > _PATIENCE_S or len(open_since) > _MOST_OPEN:
                    del open_since[each]
                    each.close()
    print(opened, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
