# SPDX-License-Identifier: MIT
"""That the wide-area network in a box delays, loses and limits what it says, and nothing else."""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.networks import namespaces, wan
from tests.benchmarks.support import needs_namespaces

_NEEDED = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="this kernel has no /dev/net/tun")
pytestmark = [pytest.mark.gate, _NEEDED, needs_namespaces]

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK = 0x40000000
_RCVBUFFORCE = 33  # SO_RCVBUF without the limit of the system


def _socket(host: namespaces.Host, kind: socket.SocketKind) -> socket.socket:
    """A socket of the host's namespace, in which it stays whoever uses it. The thread that made it ends."""
    made: list[socket.socket] = []

    def make() -> None:
        with Path("/run/netns", host.namespace).open() as namespace:
            if _LIBC.setns(namespace.fileno(), _NEW_NETWORK) == 0:
                made.append(socket.socket(socket.AF_INET, kind))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert made, f"setns to {host.namespace}: {os.strerror(ctypes.get_errno())}"
    made[0].settimeout(60)
    return made[0]


@contextmanager
def _connection(hosts: namespaces.Hosts) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection from the first host to the second."""
    with _socket(hosts[0], socket.SOCK_STREAM) as near, _socket(hosts[1], socket.SOCK_STREAM) as listener:
        listener.bind((hosts[1].address, 0))
        listener.listen()
        near.connect(listener.getsockname())
        far = listener.accept()[0]
        with far:
            far.settimeout(60)
            yield near, far


def _receive(end: socket.socket) -> bytes:
    """Everything up to the end of the stream."""
    return b"".join(iter(lambda: end.recv(1 << 20), b""))


def _transfer(hosts: namespaces.Hosts, content: bytes) -> bytes:
    """What arrives when this is sent."""
    with _connection(hosts) as (near, far):

        def send() -> None:
            near.sendall(content)
            near.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        arrived = _receive(far)
        sender.join()
    return arrived


def _handshake_s(hosts: namespaces.Hosts) -> float:
    before = time.monotonic()
    with _connection(hosts):
        return time.monotonic() - before


def test_a_handshake_takes_the_round_trip(relay: Path) -> None:
    with wan.wan(relay, wan.Line(round_trip_ms=60), "reno") as there:
        times = [_handshake_s(there.hosts) for _ in range(5)]
    assert min(times) >= 0.060
    assert min(times) < 0.600, "ten times what was asked for, at best"


@pytest.mark.parametrize("loss", [0.0, 0.01], ids=["lossless", "lossy"])
def test_tcp_arrives_whole(relay: Path, loss: float) -> None:
    content = os.urandom(8 << 20)
    with wan.wan(relay, wan.Line(round_trip_ms=2, loss=loss), "bbr") as there:
        assert _transfer(there.hosts, content) == content
        assert _transfer((there.hosts[1], there.hosts[0]), content) == content
    for direction in there.counts["directions"]:
        assert direction["bytes"] > len(content)
        assert direction["carried"] == direction["packets"] + direction["lost"] + direction["refused"]
        assert (direction["lost"] > 0) is (loss > 0)
        assert direction["overflowed"] == direction["dropped"] == direction["full"] == 0
        assert direction["refused"] < 5, "but for what the kernel says of itself while the other device is not up"


def test_as_many_datagrams_are_lost_as_was_asked_for(relay: Path) -> None:
    sent, loss = 20_000, 0.05
    with (
        wan.wan(relay, wan.Line(round_trip_ms=2, loss=loss), "reno") as there,
        _socket(there.hosts[0], socket.SOCK_DGRAM) as near,
        _socket(there.hosts[1], socket.SOCK_DGRAM) as far,
    ):
        far.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 28)
        far.bind((there.hosts[1].address, 0))
        for number in range(sent):
            near.sendto(number.to_bytes(4, "big"), far.getsockname())
        for _ in range(100):  # one of them arrives, after everything before it
            near.sendto(b"end", far.getsockname())
        arrived = [int.from_bytes(packet, "big") for packet in iter(lambda: far.recv(64), b"end")]
    assert arrived == sorted(set(arrived))
    assert abs(sent - len(arrived) - sent * loss) < 5 * math.sqrt(sent * loss * (1 - loss))
    assert there.counts["directions"][0]["lost"] >= sent - len(arrived)


def test_the_rate_is_kept_and_its_queue_overflows(relay: Path) -> None:
    content = os.urandom(4 << 20)
    line = wan.Line(round_trip_ms=2, rate_mbits=100, queue_bytes=64 * 1024)
    with wan.wan(relay, line, "cubic") as there:
        before = time.monotonic()
        assert _transfer(there.hosts, content) == content
        rate = len(content) / (time.monotonic() - before)
    assert rate <= 100e6 / 8
    assert there.counts["directions"][0]["overflowed"] > 0, "cubic fills every queue"


def test_nothing_is_left_behind(relay: Path) -> None:
    with pytest.raises(KeyboardInterrupt), wan.wan(relay, wan.Line(round_trip_ms=2), "reno") as there:
        raise KeyboardInterrupt
    assert "seed" in there.counts, "the relay has ended and told"
    assert not [name for name in Path("/run/netns").iterdir() if name.name.startswith(f"bnet-track-{os.getpid()}-")]


def _start(relay: Path, *arguments: str) -> subprocess.Popen[str]:
    """A relay whose devices are there."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([str(relay), *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"seed": 1, "large_packets": True}
    return process


def test_a_signal_ends_the_relay_and_its_devices(relay: Path) -> None:
    with namespaces.namespace("wana") as a, namespaces.namespace("wanb") as b:
        process = _start(relay, "--device", "wan0", a, b)
        assert "wan0" in namespaces.run(["ip", "-n", b, "link"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0  # with its stdin open
        counts = json.loads(process.communicate()[0])
        assert [direction["packets"] for direction in counts["directions"]] == [0, 0]
        assert "wan0" not in namespaces.run(["ip", "-n", a, "link"]) + namespaces.run(["ip", "-n", b, "link"])


def test_the_relay_says_when_a_device_goes(relay: Path) -> None:
    with namespaces.namespace("wana") as a, namespaces.namespace("wanb") as b:
        process = _start(relay, "--device", "wan0", a, b)
        namespaces.run(["ip", "-n", a, "link", "delete", "wan0"])
        assert process.wait(timeout=30) == 1  # with its stdin open
        said = process.communicate()[1]
    assert said.startswith("relay: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "wan0", "--loss", "1.5", "{a}", "{b}"], "a line like this: Invalid argument"),
        (["--device", "wan0", "--loss", "much", "{a}", "{b}"], "usage: "),
        (["--device", "wan0", "--delay", "-1", "{a}", "{b}"], "usage: "),
        (["--device", "a-name-that-is-too-long", "{a}", "{b}"], "usage: "),
        (["--device", "wan0", "{a}"], "usage: "),
        (["--device", "wan0", "{a}", "no-such-namespace"], "relay: /run/netns/no-such-namespace: No such file"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(relay: Path, arguments: list[str], sentence: str) -> None:
    with namespaces.namespace("wana") as a, namespaces.namespace("wanb") as b:
        words = [word.format(a=a, b=b) for word in arguments]
        done = subprocess.run(
            [str(relay), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    assert done.returncode != 0
    assert sentence in done.stderr
    assert not done.stdout
