# SPDX-License-Identifier: MIT
"""What the line of the relay does to packets and times: arithmetic, without a clock or a network."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator

import pytest

from tests.benchmarks import support

_NEVER = (1 << 64) - 1
_HEADER = 10
MS = 1_000_000


class _Config(ctypes.Structure):
    _fields_ = [
        ("delay", ctypes.c_uint64),
        ("loss", ctypes.c_double),
        ("rate", ctypes.c_uint64),
        ("queue", ctypes.c_uint64),
        ("seed", ctypes.c_uint32),
        ("packets", ctypes.c_uint32),
        ("packet_size", ctypes.c_uint32),
        ("header_size", ctypes.c_uint32),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("overflowed", "drawn", "lost", "full")]


class Line:
    """line.h, with the header in front of each packet left out of sight."""

    def __init__(self, library: ctypes.CDLL, **config: float) -> None:
        self._library = library
        self._object = ctypes.c_void_p()
        given: dict[str, float] = {"packets": 1000, "packet_size": 1500, "header_size": _HEADER, "seed": 1, **config}
        error = library.line_create(ctypes.byref(self._object), ctypes.byref(_Config(**given)))
        if error:
            raise OSError(-error, os.strerror(-error))

    def destroy(self) -> None:
        self._library.line_destroy(self._object)

    def enter(self, now: int, packet: bytes) -> bool:
        """False where there is no room."""
        room = self._library.line_room(self._object)
        if not room:
            return False
        ctypes.memmove(room, b"h" * _HEADER + packet, _HEADER + len(packet))
        self._library.line_enter(self._object, ctypes.c_uint64(now), ctypes.c_size_t(_HEADER + len(packet)))
        return True

    def leave(self) -> Iterator[tuple[int, bytes]]:
        """(when, packet) of everything under way."""
        size = ctypes.c_size_t()
        while (due := self._library.line_due(self._object)) != _NEVER:
            packet = self._library.line_oldest(self._object, ctypes.byref(size))
            yield due, ctypes.string_at(packet, size.value)[_HEADER:]
            self._library.line_leave(self._object)

    def loses(self) -> bool:
        return bool(self._library.line_loses(self._object))

    def counts(self) -> _Counts:
        counts = _Counts()
        self._library.line_count(self._object, ctypes.byref(counts))
        return counts


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """line.c as it is now."""
    loaded = support.library("line.c", tmp_path_factory.mktemp("line"))
    loaded.line_due.restype = ctypes.c_uint64
    loaded.line_loses.restype = ctypes.c_bool
    loaded.line_room.restype = loaded.line_oldest.restype = ctypes.c_void_p
    return loaded


def _lost(library: ctypes.CDLL, packets: int, **config: float) -> list[int]:
    """Numbers of the packets that were lost."""
    line = Line(library, **config)
    lost = [number for number in range(packets) if line.loses()]
    assert (line.counts().drawn, line.counts().lost) == (packets, len(lost))
    line.destroy()
    return lost


def test_each_packet_leaves_whole_and_in_order_after_the_delay(library: ctypes.CDLL) -> None:
    line = Line(library, delay=20 * MS)
    sent = [(number * 7 + number % 3, os.urandom(1 + number % 1500)) for number in range(900)]
    for when, packet in sent:
        assert line.enter(when, packet)
    assert list(line.leave()) == [(when + 20 * MS, packet) for when, packet in sent]
    line.destroy()


def test_memory_is_used_again(library: ctypes.CDLL) -> None:
    line = Line(library, packets=3)
    for turn in range(5):
        packets = [bytes([turn, number]) for number in range(3)]
        assert all(line.enter(0, packet) for packet in packets)
        assert not line.enter(0, b"no room")
        assert [packet for _, packet in line.leave()] == packets
    assert line.counts().full == 5
    line.destroy()


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.5])
def test_as_many_packets_are_lost_as_was_asked_for(library: ctypes.CDLL, loss: float) -> None:
    packets = 200_000
    deviation = math.sqrt(packets * loss * (1 - loss))
    assert abs(len(_lost(library, packets, loss=loss, seed=42)) - packets * loss) < 5 * deviation


def test_nothing_or_everything_can_be_lost(library: ctypes.CDLL) -> None:
    assert _lost(library, 10_000, loss=0.0) == []
    assert len(_lost(library, 10_000, loss=1.0)) == 10_000


def test_the_seed_says_which_packets_are_lost(library: ctypes.CDLL) -> None:
    first, again, other = (_lost(library, 10_000, loss=0.01, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert set(first) != set(other)


def test_packets_come_no_faster_than_the_rate(library: ctypes.CDLL) -> None:
    line = Line(library, rate=3_000_001, queue=1_000_000, delay=MS)
    for number in range(400):
        line.enter(0, bytes(1 + number * 3))
    passed = 0
    for due, packet in line.leave():
        passed += len(packet)
        assert passed * 1_000_000_000 <= 3_000_001 * (due - MS)
    assert (due - MS) * 3_000_001 <= passed * 1_000_000_000 * 1.001  # and no slower
    line.destroy()


def test_an_idle_line_saves_up_no_rate(library: ctypes.CDLL) -> None:
    line = Line(library, rate=1_500_000, queue=3000)
    late = 1_000_000_000
    line.enter(0, bytes(1500))
    line.enter(late, bytes(1500))
    line.enter(late, bytes(1500))
    assert [due for due, _ in line.leave()] == [MS, late + MS, late + 2 * MS]
    line.destroy()


def test_what_the_queue_cannot_hold_is_dropped(library: ctypes.CDLL) -> None:
    line = Line(library, rate=1_500_000, queue=15_000)
    for number in range(30):
        line.enter(0, bytes([number]) * 1500)
    line.enter(10 * MS, bytes([30]) * 1500)  # it has drained
    assert [packet[0] for _, packet in line.leave()] == [*range(10), 30]
    assert line.counts().overflowed == 20
    line.destroy()


@pytest.mark.parametrize(
    "config",
    [
        {"loss": 1.1},
        {"loss": -0.1},
        {"loss": math.nan},
        {"delay": 61_000 * MS},
        {"rate": 1000, "queue": 1499},
        {"rate": 1, "queue": 1_000_000},
        {"rate": 1 << 60, "queue": 1 << 20},
        {"packets": 0},
    ],
)
def test_what_no_line_can_be_like_is_refused(library: ctypes.CDLL, config: dict[str, float]) -> None:
    with pytest.raises(OSError, match=os.strerror(22)):
        Line(library, **config)
