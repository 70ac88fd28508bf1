# SPDX-License-Identifier: MIT
"""Element types, and test data for which every result is exact.

A rank's data is an endless stream of small whole numbers, drawn from a generator seeded by the rank, that repeats
after :data:`PERIOD` elements: a prime, so that no block of a power of two looks like another. Sums, products and
averages over all ranks stay within the range that the type represents exactly: a result is right or wrong, never close.
Only what was sent as codes may be close: :func:`tolerance`.
"""

from __future__ import annotations

import math
import operator
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

PERIOD = 251
_CHUNK = 1 << 20
_UNSIGNED: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}

#: With more ranks, a sum would not fit into int8, whose largest value is 127.
MAX_RANKS = 120


@dataclass(frozen=True)
class ElementType:
    name: str
    code: int
    """BNET_… of bagua_net_host.h."""
    size: int
    """Bytes."""
    largest: int
    """Every whole number from 0 to this one is represented exactly."""
    format: str
    """For struct, which lacks bfloat16: that is encoded as the upper half of a float32."""

    def encode(self, values: list[int]) -> bytes:
        raw = struct.pack(f"<{len(values)}{self.format}", *values)
        if self.name != "bfloat16":
            return raw
        return b"".join(raw[at + 2 : at + 4] for at in range(0, len(raw), 4))


TYPES = {
    row.name: row
    for row in (
        ElementType("int8", 0, 1, 127, "b"),
        ElementType("uint8", 1, 1, 255, "B"),
        ElementType("int32", 2, 4, 2**31 - 1, "i"),
        ElementType("int64", 3, 8, 2**63 - 1, "q"),
        ElementType("float16", 4, 2, 2**11, "e"),
        ElementType("bfloat16", 5, 2, 2**8, "f"),
        ElementType("float32", 6, 4, 2**24, "f"),
        ElementType("float64", 7, 8, 2**53, "d"),
    )
}

#: Reductions by name, with their BNET_… codes.
REDUCTIONS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}


def _sum_input(rank: int, nranks: int, largest: int) -> list[int]:
    draw = random.Random(rank)
    bound = min(largest // nranks, 15)
    return [draw.randint(0, bound) for _ in range(PERIOD)]


def _product_input(rank: int, nranks: int, largest: int) -> list[int]:
    """Twos and ones. At most six ranks, drawn at random, have a two at the same place: 2**6 fits all types."""
    values = []
    for index in range(PERIOD):
        draw = random.Random(index)
        with_two = draw.sample(range(nranks), draw.randint(0, min(nranks, 6)))
        values.append(2 if rank in with_two else 1)
    return values


def _average_input(rank: int, nranks: int, largest: int) -> list[int]:
    """The same number on all ranks, plus one on one rank and minus one on another: the sum divides evenly."""
    draw = random.Random(-1)
    bound = max(1, min(largest // nranks - 1, 15))
    values = []
    for index in range(PERIOD):
        more, less = index % nranks, (index + 1) % nranks
        values.append(draw.randint(1, bound) + (rank == more) - (rank == less))
    return values


_INPUTS: dict[str, Callable[[int, int, int], list[int]]] = {
    "sum": _sum_input,
    "min": _sum_input,
    "max": _sum_input,
    "prod": _product_input,
    "avg": _average_input,
}
_REDUCE: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "prod": math.prod,
    "avg": lambda column: sum(column) // len(column),
}


@dataclass(frozen=True)
class Stream:
    """An endless repetition of :data:`PERIOD` elements."""

    period: bytes
    element: ElementType

    def chunks(self, start: int, count: int) -> Iterator[tuple[int, bytes]]:
        """(byte position, bytes) of the elements start … start+count-1, position 0 being the first of them."""
        turn = start % PERIOD * self.element.size
        tile = (self.period[turn:] + self.period[:turn]) * max(1, _CHUNK // len(self.period))
        total = count * self.element.size
        for position in range(0, total, len(tile)):
            yield position, tile[: total - position]

    def fill(self, target: memoryview, start: int, count: int) -> None:
        """Writes those elements to the beginning of target."""
        for position, data in self.chunks(start, count):
            target[position : position + len(data)] = data

    def wrong(self, found: memoryview, start: int, count: int) -> int:
        """The number of elements among the first ``count`` of ``found`` that differ from those."""
        wrong = 0
        for position, expected in self.chunks(start, count):
            chunk = bytes(found[position : position + len(expected)])
            if chunk != expected:
                pair = (memoryview(data).cast(_UNSIGNED[self.element.size]) for data in (chunk, expected))
                wrong += sum(map(operator.ne, *pair))
        return wrong

    def beyond(self, found: memoryview, start: int, count: int, most: float) -> int:
        """The number of elements, of float32, that differ from those by more than ``most``."""
        beyond = 0
        for position, expected in self.chunks(start, count):
            chunk = found[position : position + len(expected)]
            if chunk != expected:
                pair = (memoryview(data).cast("B").cast("f") for data in (chunk, expected))
                near = map(float(most).__ge__, map(abs, map(operator.sub, *pair)))  # NaN is not near
                beyond += len(expected) // self.element.size - sum(near)
        return beyond


def inputs(element: ElementType, redop: str, nranks: int) -> list[Stream]:
    """Each rank's stream."""
    draw = _INPUTS[redop]
    return [Stream(element.encode(draw(rank, nranks, element.largest)), element) for rank in range(nranks)]


def reduced(element: ElementType, redop: str, nranks: int) -> Stream:
    """The stream that reducing all ranks' streams must give."""
    columns = zip(*(_INPUTS[redop](rank, nranks, element.largest) for rank in range(nranks)), strict=True)
    return Stream(element.encode([_REDUCE[redop](list(column)) for column in columns]), element)


def tolerance(element: ElementType, redop: str, nranks: int, largest: int) -> float:
    """How far an element of a compressed allreduce may be from the exact one: half a step of each rank's code, and half
    a step of the result's (``bnet_coll_allreduce_q`` in bagua_net_host.h). A step is the range of all data by
    ``largest``, the largest code, which is no less than that of a block. A thousandth more for what float32 rounds.
    """
    columns = [_INPUTS[redop](rank, nranks, element.largest) for rank in range(nranks)]
    lost = sum(max(column) - min(column) for column in columns) / largest / 2
    if redop == "avg":
        lost /= nranks
    results = [_REDUCE[redop](list(row)) for row in zip(*columns, strict=True)]
    again = (max(results) - min(results) + 2 * lost) / largest / 2
    return (lost + again) * 1.001
