# SPDX-License-Identifier: MIT
"""A proxy that ends TCP, as a sidecar or a service mesh does: all connections that a host makes go through it, and it
acknowledges what it has not passed on.

    with tcp_proxy.beside(host) as proxy:
        ...                        # connections of that host
        proxy.hold()               # it goes on reading, and passes nothing on to the peer
        proxy.reset()              # both ends of each connection are reset; later ones are passed on again
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support import programs
from tests.support.netns import Host

_PORT = 9000
#: Of the proxy's own connections, which must not come back to it.
_MARK = 7
_SO_ORIGINAL_DST = 80
_ONCE = 1 << 16
_RULES = f"""table ip proxy {{
chain out {{
type nat hook output priority -100
meta mark != {_MARK} tcp dport 1024-65535 redirect to :{_PORT}
}}
}}
"""


@dataclass(frozen=True)
class Proxy:
    process: subprocess.Popen[str]

    def _tell(self, what: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{what}\n"

    def hold(self) -> None:
        self._tell("hold")

    def reset(self) -> None:
        self._tell("reset")


@contextlib.contextmanager
def beside(host: Host) -> Iterator[Proxy]:
    with subprocess.Popen(
        [*host.prefix, sys.executable, "-m", __name__],
        cwd=programs.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            proxy = Proxy(process)
            assert process.stdout
            assert process.stdout.readline() == "listening\n"
            host.nft(_RULES)
            yield proxy
        finally:
            process.kill()


class _Passing:
    """Two sockets, each the other's way on."""

    def __init__(self, selector: selectors.BaseSelector, near: socket.socket) -> None:
        where = near.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        port, address = struct.unpack("!2xH4s", where[:8])
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _MARK)
        far.connect((socket.inet_ntoa(address), port))
        self._selector = selector
        self.near, self._far = near, far
        self._held = False
        for each in (near, far):
            selector.register(each, selectors.EVENT_READ, self)

    def passes(self, source: socket.socket) -> None:
        target = self._far if source is self.near else self.near
        try:
            data = source.recv(_ONCE)
            if data and not (self._held and source is self.near):
                target.sendall(data)
            elif not data:
                self._selector.unregister(source)
                target.shutdown(socket.SHUT_WR)
        except OSError:  # one of the two was reset
            self.reset()

    def hold(self) -> None:
        self._held = True

    def reset(self) -> None:
        for each in (self.near, self._far):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


def _main() -> None:
    selector = selectors.DefaultSelector()
    passing: list[_Passing] = []
    with socket.create_server(("0.0.0.0", _PORT), backlog=100) as listener:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ, "told")
        print("listening", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    with contextlib.suppress(OSError):  # nobody listens there: the near end is closed
                        passing.append(_Passing(selector, listener.accept()[0]))
                elif key.data == "told":
                    what = sys.stdin.readline().strip()
                    for each in passing:
                        each.hold() if what == "hold" else each.reset()
                    if what == "reset":
                        passing.clear()
                    print(what, flush=True)
                elif key.fileobj in selector.get_map() and isinstance(key.fileobj, socket.socket):
                    key.data.passes(key.fileobj)


if __name__ == "__main__":
    _main()
