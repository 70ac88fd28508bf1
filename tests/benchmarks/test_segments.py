# SPDX-License-Identifier: MIT
"""What is left of a large packet that lost segments: packets that a receiver takes for the sender's own."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

import pytest

from tests.benchmarks import support

_VNET = struct.Struct("<BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
_NEEDS_CHECKSUM, _NO_GSO, _TCPV4, _UDP = 1, 0, 1, 3
_FIN, _PSH, _ACK, _ECE, _CWR = 0x01, 0x08, 0x10, 0x40, 0x80
_SEQUENCE = 0xFFFF_F000  # wraps within the packet


class _Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Segments(ctypes.Structure):
    _fields_ = [
        ("packet", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("count", ctypes.c_uint32),
        ("headers", ctypes.c_size_t),
        ("each", ctypes.c_size_t),
    ]


@dataclass
class Packet:
    """A packet taken apart."""

    gso: tuple[int, int]
    """(type, size)."""
    ip: bytes
    sequence: int
    flags: int
    checksum: int
    tcp_options: bytes
    payload: bytes


def _sum(data: bytes) -> int:
    """RFC 1071, without the complement."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _ip(size: int, identification: int = 0xFFFE) -> bytes:
    addresses = bytes([10, 0, 1, 1, 10, 0, 1, 2])
    head = struct.pack(">BBHHHBBH", 0x45, 2, size, identification, 0x4000, 64, 6, 0) + addresses
    return head[:10] + struct.pack(">H", ~_sum(head) & 0xFFFF) + head[12:]


def _large(payload: bytes, flags: int, each: int = 1448) -> bytes:
    options = bytes(range(12))
    checksum = 0x1234  # whatever it was, another length needs another one
    tcp = struct.pack(">HHIIBBHHH", 4000, 5000, _SEQUENCE, 77, 8 << 4, flags, 1000, checksum, 0) + options
    vnet = _VNET.pack(_NEEDS_CHECKSUM, _TCPV4, 52, each, 20, 16)
    return vnet + _ip(52 + len(payload)) + tcp + payload


def _parsed(packet: bytes) -> Packet:
    flags, gso_type, header_size, gso_size, start, offset = _VNET.unpack(packet[:10])
    assert (flags, header_size, start, offset) == (_NEEDS_CHECKSUM, 52, 20, 16)
    tcp = packet[30:62]
    fields = struct.unpack(">HHIIBBHHH", tcp[:20])
    assert fields[:2] + fields[3:5] + (fields[6], fields[8]) == (4000, 5000, 77, 8 << 4, 1000, 0)
    return Packet((gso_type, gso_size), packet[10:30], fields[2], fields[5], fields[7], tcp[20:], packet[62:])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """segments.c as it is now."""
    return support.library("segments.c", tmp_path_factory.mktemp("segments"))


def _count(library: ctypes.CDLL, packet: bytes) -> int:
    found = _Segments()
    library.segments_find(packet, ctypes.c_size_t(len(packet)), ctypes.byref(found))
    return int(found.count)


def _cut(library: ctypes.CDLL, packet: bytes, first: int, end: int) -> Packet:
    found, headers, parts = _Segments(), ctypes.create_string_buffer(130), (_Part * 2)()
    kept = ctypes.create_string_buffer(packet, len(packet))
    library.segments_find(kept, ctypes.c_size_t(len(packet)), ctypes.byref(found))
    library.segments_cut(ctypes.byref(found), first, end, headers, parts)
    assert kept.raw == packet, "what is left of it is handed out, too"
    return _parsed(b"".join(ctypes.string_at(part.base, part.size) for part in parts))


@pytest.mark.parametrize(("payload", "count"), [(1, 1), (1448, 1), (1449, 2), (14480, 10), (65000, 45)])
def test_segments_are_counted_as_the_wire_would_have_them(library: ctypes.CDLL, payload: int, count: int) -> None:
    assert _count(library, _large(bytes(payload), _ACK)) == count


@pytest.mark.parametrize(
    "packet",
    [
        _VNET.pack(0, _NO_GSO, 0, 0, 0, 0),
        _VNET.pack(0, _TCPV4, 0, 1448, 0, 0) + bytes(10),
        _VNET.pack(0, _TCPV4, 0, 1448, 0, 0) + b"\x60" + bytes(5000),
        _VNET.pack(0, _TCPV4, 0, 0, 0, 0) + _large(bytes(5000), _ACK)[10:],
        _VNET.pack(0, _UDP, 0, 1448, 0, 0) + _large(bytes(5000), _ACK)[10:],
        _large(b"", _ACK),
        _large(b"", _ACK)[:45],
    ],
    ids=["header alone", "cut short", "IPv6", "no size", "not TCP", "no payload", "within the TCP header"],
)
def test_what_is_no_large_packet_is_one(library: ctypes.CDLL, packet: bytes) -> None:
    assert _count(library, packet) == 1


@pytest.mark.parametrize(("first", "end"), [(0, 1), (0, 4), (3, 4), (2, 7), (7, 10), (9, 10)])
def test_a_part_is_what_the_wire_would_have_carried(library: ctypes.CDLL, first: int, end: int) -> None:
    payload = os.urandom(9 * 1448 + 100)
    part = _cut(library, _large(payload, _ACK | _PSH | _FIN | _ECE | _CWR), first, end)
    assert part.payload == payload[first * 1448 : end * 1448]
    assert part.sequence == (_SEQUENCE + first * 1448) % (1 << 32)
    assert part.tcp_options == bytes(range(12))
    assert part.ip == _ip(52 + len(part.payload), (0xFFFE + first) % (1 << 16))
    pseudo = part.ip[12:] + struct.pack(">HH", 6, 32 + len(part.payload))
    assert part.checksum == _sum(pseudo)
    assert part.flags & (_ACK | _ECE) == _ACK | _ECE
    assert bool(part.flags & _CWR) is (first == 0)
    assert bool(part.flags & _FIN) is bool(part.flags & _PSH) is (end == 10)
    assert part.gso == ((_TCPV4, 1448) if end - first > 1 else (_NO_GSO, 0))
