# SPDX-License-Identifier: MIT
"""The collectives to run and check: a bounded choice of operations, types, sizes, protocols and algorithms.

Ranks that share a GPU take turns on it, and each step of a collective waits for a turn: with more ranks, they do less.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

OPS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
)
#: The operations whose send or receive buffer has a block for each rank.
BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Setting:
    """NCCL_PROTO and NCCL_ALGO of a communicator; empty: NCCL chooses."""

    proto: str = ""
    algo: str = ""

    @property
    def name(self) -> str:
        return f"{self.algo} {self.proto}".strip() or "NCCL's choice"

    @property
    def environment(self) -> dict[str, str]:
        rows = {"NCCL_PROTO": self.proto, "NCCL_ALGO": self.algo}
        return {name: value for name, value in rows.items() if value}


SETTINGS = (Setting(), *(Setting(proto, algo) for algo in ("Ring", "Tree") for proto in ("LL", "LL128", "Simple")))


@dataclass(frozen=True)
class Case:
    """One collective."""

    op: str
    dtype: str
    size: int
    """Bytes of the larger buffer, about."""
    redop: str = "sum"

    def count(self, ranks: int) -> int:
        """Elements, a block's where the operation has blocks; at least one."""
        return max(1, self.size // ELEMENT_BYTES[self.dtype] // (ranks if self.op in BLOCKS else 1))

    @property
    def name(self) -> str:
        return f"{self.op} {self.redop} {self.dtype} {self.size} B"


@dataclass(frozen=True)
class Effort:
    """The cases of a number of ranks with each setting."""

    dtypes: tuple[str, ...]
    sweep: tuple[int, ...]
    """Sizes of all_reduce."""
    others: tuple[int, ...]
    """Sizes of every other operation."""
    reductions: tuple[str, ...] = ()
    """All_reduce besides the sum, with NCCL's own choice."""
    largest: int = 0
    """All_reduce with NCCL's own choice and with Ring Simple; 0: none."""


#: Neither 1000 B nor 24 B more than 1 MiB is a whole number of NCCL's lines of 16 or 128 bytes, or of our 4 KiB.
EFFORTS = {
    2: Effort(
        ("float32", "float16", "bfloat16"),
        (8, 1000, 64 * KIB, MIB + 24, 16 * MIB),
        (1000, MIB + 24),
        ("min", "max", "prod", "avg"),
        GIB,
    ),
    4: Effort(("float32", "bfloat16"), (8, 64 * KIB, MIB + 24), (1000, MIB + 24), ("avg",)),
    8: Effort(("float32",), (8, MIB + 24), (MIB + 24,)),
}
#: Host memory is slower; it only shows that the program is right.
CPU_EFFORT = Effort(("float32", "float16", "bfloat16"), (8, 1000, MIB + 24), (1000, 64 * KIB), ("min", "max"))


def effort(ranks: int, device: str) -> Effort:
    return EFFORTS[ranks] if device == "cuda" else CPU_EFFORT


def settings(device: str) -> tuple[Setting, ...]:
    """Only NCCL has protocols."""
    return SETTINGS if device == "cuda" else SETTINGS[:1]


def cases(setting: Setting, amount: Effort) -> list[Case]:
    """Only all_reduce has trees."""
    found = [Case("all_reduce", dtype, size) for dtype in amount.dtypes for size in amount.sweep]
    if setting.algo != "Tree":
        found += [Case(op, dtype, size) for op in OPS[1:] for dtype in amount.dtypes for size in amount.others]
    if setting == Setting():
        found += [Case("all_reduce", amount.dtypes[0], amount.others[0], redop) for redop in amount.reductions]
    if amount.largest and setting in (Setting(), Setting("Simple", "Ring")):
        found.append(Case("all_reduce", amount.dtypes[0], amount.largest))
    return found


def least_bytes(setting: Setting, amount: Effort, ranks: int) -> int:
    """The least number of bytes that all ranks together must send for the all_reduces: every algorithm needs at least
    2 (n - 1) times the buffer."""
    return sum(
        2 * (ranks - 1) * case.count(ranks) * ELEMENT_BYTES[case.dtype]
        for case in cases(setting, amount)
        if case.op == "all_reduce"
    )
