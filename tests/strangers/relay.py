# SPDX-License-Identifier: MIT
"""One on the way between two libraries: it sees what they send each other, and may change the sender's frames.

with relay.between(handle, change) as on_the_way:
    sender.tell(f"connect {on_the_way.handle.text()}")
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.strangers import protocol
from tests.strangers.protocol import Handle, Stream

_ONCE = 1 << 16

#: Gets a DATA frame of the sender's and its number, and returns what is passed on. None: nothing more, and the end.
Change = Callable[[bytes, int], "bytes | None"]


def unchanged(whole: bytes, _number: int) -> bytes:
    return whole


@dataclass
class Relay:
    handle: Handle
    change: Change
    #: All that the sender has sent, and its DATA frames.
    seen: bytearray = field(default_factory=bytearray)
    frames: list[bytes] = field(default_factory=list)
    _streams: list[socket.socket] = field(default_factory=list)

    def reset(self) -> None:
        """Both ends of every connection."""
        streams, self._streams = self._streams, []
        for each in streams:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()

    def _onwards(self, sender: socket.socket, receiver: socket.socket) -> None:
        from_sender, to_receiver = Stream(sender), Stream(receiver)
        with contextlib.suppress(OSError):
            while True:
                kind, whole = from_sender.hear_frame()
                self.seen += whole
                passed: bytes | None = whole
                if kind == protocol.DATA:
                    passed = self.change(whole, len(self.frames))
                    self.frames.append(whole)
                if passed is None:
                    break
                to_receiver.say(passed)
        with contextlib.suppress(OSError):
            receiver.shutdown(socket.SHUT_WR)

    @staticmethod
    def _back(receiver: socket.socket, sender: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := receiver.recv(_ONCE):
                sender.sendall(data)
            sender.shutdown(socket.SHUT_WR)

    def _serve(self, server: socket.socket, to: tuple[str, int]) -> None:
        while True:
            try:
                sender, _ = server.accept()
                receiver = socket.create_connection(to)
            except OSError:
                return
            self._streams += [sender, receiver]
            threading.Thread(target=self._onwards, args=(sender, receiver), daemon=True).start()
            threading.Thread(target=self._back, args=(receiver, sender), daemon=True).start()


@contextlib.contextmanager
def between(handle: Handle, change: Change = unchanged) -> Iterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        on_the_way = Relay(Handle(handle.token, server.getsockname()), change)
        threading.Thread(target=on_the_way._serve, args=(server, handle.address), daemon=True).start()
        try:
            yield on_the_way
        finally:
            server.shutdown(socket.SHUT_RDWR)
            on_the_way.reset()
