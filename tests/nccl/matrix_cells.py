# SPDX-License-Identifier: MIT
"""The matrix's cells: one operation each, with its type, reduction, size and placing. Two amounts: quick, for every
change, and whole, by hand.

The quick amount has every operation with every type and reduction; sizes, roots and placings take turns among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.nccl.matrix_values import AVG, PREMULSUM, PREMULSUM_DEVICE, REDUCTIONS, SUM, TYPES, Type

KIB, MIB = 1 << 10, 1 << 20

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
MOVING = ("all_gather", "broadcast")
#: Written as groups of sends and receives. Blocks are of unequal size, some empty, but those of a ring.
POINT_TO_POINT = ("ring", "all_to_all", "gather", "scatter")
#: Groups of other cells: collectives and transfers that start together; and broadcasts from several roots, which NCCL
#: 2.29 and later makes one operation of its own.
GROUP, BROADCASTS = "group", "broadcasts"

_ROOTED = ("reduce", "broadcast", "gather", "scatter")
_IN_PLACE = (*REDUCING, *MOVING)
#: The buffers have a block for each rank.
_PER_RANK = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Cell:
    """One operation, the same on all ranks."""

    op: str
    dtype: str = "float32"
    reduction: str = ""
    count: int = 0
    """Elements, as NCCL's call has them; of point-to-point operations but the ring: of the smallest block."""
    root: int = 0
    in_place: bool = False
    send_shift: int = 0
    """Elements from an aligned address to the send buffer."""
    receive_shift: int = 0
    first: int = 0
    """Where the data begins in its stream: neighbouring cells have different data."""
    parts: tuple[Cell, ...] = ()
    """Of a group."""

    @property
    def name(self) -> str:
        if self.parts:
            return f"{self.op} of {' + '.join(part.name for part in self.parts)}"
        words = [self.op, self.dtype, self.reduction, f"count {self.count}"]
        words += [f"root {self.root}"] if self.op in _ROOTED else []
        words += ["in place"] if self.in_place else []
        words += (
            [f"shifted by {self.send_shift} and {self.receive_shift}"] if self.send_shift or self.receive_shift else []
        )
        return " ".join(filter(None, words))

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Cell:
        return Cell(**{**fields, "parts": tuple(map(Cell.from_json, fields["parts"]))})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """What NCCL is told to use on a communicator; "" leaves the choice to it."""

    algorithm: str = ""
    protocol: str = ""

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.protocol}" if self.algorithm else "default"

    @property
    def operations(self) -> tuple[str, ...]:
        """Those that exist with this algorithm."""
        if self.algorithm == "Tree":
            return ("all_reduce",)
        if self.algorithm == "PAT":
            return ("reduce_scatter", "all_gather")
        if self.algorithm == "Ring":
            return (*REDUCING, *MOVING, GROUP, BROADCASTS)
        return (*REDUCING, *MOVING, *POINT_TO_POINT, GROUP, BROADCASTS)


DEFAULT = Setting()
SETTINGS = (
    DEFAULT,
    *(Setting("Ring", protocol) for protocol in ("Simple", "LL", "LL128")),
    *(Setting("Tree", protocol) for protocol in ("Simple", "LL", "LL128")),
    Setting("PAT", "Simple"),
)


@dataclass(frozen=True)
class Amount:
    """How much of the matrix."""

    whole: bool

    def counts(self, kind: Type) -> list[int]:
        """Elements: none, one, few, around 4 KiB and 64 KiB, odd ones."""
        page, slot = 4 * KIB // kind.size, 64 * KIB // kind.size
        counts = [1, 0, 3, 17, page - 1, page, page + 1, 1031, slot - 1, slot, slot + 1]
        return [*counts, 2, 255, 30011] if self.whole else counts

    def turns(self, kind: Type, reduction: str) -> int:
        """How many sizes a type and a reduction get."""
        if reduction == SUM and (self.whole or kind.name in ("float32", "bfloat16")):
            return 2 * len(self.counts(kind)) if self.whole else len(self.counts(kind))
        if not reduction and (self.whole or kind.name in ("uint8", "float32")):
            return len(self.counts(kind))
        return 5 if self.whole else 2

    def long(self, setting: Setting) -> list[int]:
        """Bytes of the longest buffers: enough to use every slot of NCCL's buffers more than once."""
        if setting.protocol in ("LL", "LL128"):
            return [MIB + 4, 9 * MIB + 4] if self.whole else [MIB + 4]
        return [MIB + 4, 9 * MIB + 4, *([64 * MIB] if self.whole else [])]


QUICK, WHOLE = Amount(False), Amount(True)


# ---- what there is not ----


def absent(version: str, setting: Setting, cell: Cell) -> str:
    """Why a release has no such cell; "": it has."""
    release = tuple(map(int, version.split(".")))
    if setting.algorithm == "PAT":
        if release < (2, 23):
            return "PAT begins with NCCL 2.23"
        if release < (2, 31) and cell.op == "reduce_scatter" and cell.reduction in (AVG, PREMULSUM, PREMULSUM_DEVICE):
            return "up to 2.30 NCCL has no PAT for reductions that scale"
    if TYPES[cell.dtype].is_float8:
        if release < (2, 24):
            return "8-bit floats begin with NCCL 2.24"
        if cell.op in REDUCING:
            return "NCCL reduces 8-bit floats on GPUs of capability 9.0 and later; the emulated one has 8.0"
        if release < (2, 28) and cell.op in MOVING:
            return "up to 2.27 NCCL has no collective on 8-bit floats below capability 9.0"
    return ""


# ---- the plan ----


def plan(version: str, setting: Setting, ranks: int, amount: Amount) -> dict[str, list[Cell]]:
    """The cells that exist, by operation."""
    made = {op: list(_cells(op, setting, ranks, amount)) for op in setting.operations}
    return {
        op: [
            replace(cell, first=97 * number)
            for number, cell in enumerate(cells)
            if not any(absent(version, setting, part) for part in (cell, *cell.parts))
        ]
        for op, cells in made.items()
    }


def refused(version: str, ranks: int) -> dict[str, tuple[Setting, Cell]]:
    """For each reason of :func:`absent` a cell that this release must refuse."""
    found: dict[str, tuple[Setting, Cell]] = {}
    for setting in SETTINGS:
        for op in setting.operations:
            for cell in _cells(op, setting, ranks, QUICK):
                reason = absent(version, setting, cell)
                if reason and cell.count and not cell.parts:
                    found.setdefault(reason, (setting, cell))
    return found


def _cells(op: str, setting: Setting, ranks: int, amount: Amount) -> Iterator[Cell]:
    if op == GROUP:
        return _groups(setting, ranks, amount)
    if op == BROADCASTS:
        return _broadcasts(ranks, amount)
    return itertools.chain(_by_type(op, ranks, amount), _long(op, setting, ranks, amount))


def _placing(op: str, ranks: int, number: int) -> dict[str, Any]:
    """Roots, in place and not, shifted and not, in turn."""
    send, receive = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0))[number % 5]
    in_place = op in _IN_PLACE and number % 3 == 2
    return {
        "root": number % ranks if op in _ROOTED else 0,
        "in_place": in_place,
        "send_shift": receive if in_place else send,
        "receive_shift": receive,
    }


def _by_type(op: str, ranks: int, amount: Amount) -> Iterator[Cell]:
    start = 0
    for kind, reduction in itertools.product(TYPES.values(), REDUCTIONS if op in REDUCING else ("",)):
        counts, turns = amount.counts(kind), amount.turns(kind, reduction)
        for number in range(start, start + turns):
            yield Cell(op, kind.name, reduction, counts[number % len(counts)], **_placing(op, ranks, number))
        start += turns


def _long(op: str, setting: Setting, ranks: int, amount: Amount) -> Iterator[Cell]:
    dtypes = ("float32", "float16") if op in REDUCING else ("float32",)
    for number, (length, dtype) in enumerate(itertools.product(amount.long(setting), dtypes)):
        # The unequal blocks of a rank are 1.5 times the smallest one on average.
        parts = 2 * ranks if op in POINT_TO_POINT else ranks if op in _PER_RANK else 1
        count = length // TYPES[dtype].size // parts
        yield Cell(op, dtype, SUM if op in REDUCING else "", count, **_placing(op, ranks, number))


def _groups(setting: Setting, ranks: int, amount: Amount) -> Iterator[Cell]:
    """Collectives with transfers among them where NCCL chooses the algorithm; and several of one kind, which NCCL
    merges."""
    together = (*REDUCING, *MOVING, *(POINT_TO_POINT if setting == DEFAULT else ()))
    dtypes = ("float32", "int8", "bfloat16")
    for count in (1, 1000, 70001) if amount.whole else (1, 5003):
        yield _group(
            GROUP,
            (
                Cell(op, dtypes[n % 3], SUM if op in REDUCING else "", count, **_placing(op, ranks, n))
                for n, op in enumerate(together)
            ),
        )
        same = ("float32", "float32", "int64", "float32")
        yield _group(GROUP, (Cell("all_reduce", dtype, SUM, count) for dtype in same))


def _broadcasts(ranks: int, amount: Amount) -> Iterator[Cell]:
    """An allgather by broadcasts; and unequal ones, of which two roots have two."""
    for count in (1, 1000, 30011, 300007) if amount.whole else (1, 777, 30011):
        yield _group(BROADCASTS, (Cell("broadcast", "float32", "", count, root) for root in range(ranks)))
        roots = enumerate([*range(ranks), 0, ranks - 1])
        yield _group(
            BROADCASTS,
            (
                Cell("broadcast", "int8", "", count * (1 + n % 3) + n, root, n % 2 == 1, n % 2, n % 2)
                for n, root in roots
            ),
        )


def _group(op: str, parts: Iterable[Cell]) -> Cell:
    """The parts have different data."""
    return Cell(op, parts=tuple(replace(part, first=1009 * number) for number, part in enumerate(parts)))
