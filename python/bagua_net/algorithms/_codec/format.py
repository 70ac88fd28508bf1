# SPDX-License-Identifier: MIT
"""The layout of encoded elements: that of the library's codecs (host/codec/codec.h)."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of a block's head: two float32, middle and step.
HEAD_BYTES = 8

_LEAST_BLOCK, _MOST_BLOCK = 32, 4096


@dataclass(frozen=True)
class Format:
    """Heads of all blocks, then codes of all elements.

    A code q of a block means ``middle + (q - top / 2) * step``, computed in float32 in this order without fused
    operations: then its bits are the same on every machine and device. A block with a value that is not finite has a
    head of NaN.

    Attributes:
        bits: of a code: 8 or 4. Of two codes of 4 bits in a byte the first has the lower half. A block begins with a
            whole byte.
        block: elements that share a head: a multiple of 32, up to 4096. The last block may have fewer.

    Raises:
        ValueError: other bits, or another block.
    """

    bits: int = 8
    block: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or self.bits not in (8, 4):
            raise ValueError(f"codec: bits={self.bits!r} is not possible; give 8 or 4")
        whole = isinstance(self.block, int) and self.block % _LEAST_BLOCK == 0
        if not whole or not _LEAST_BLOCK <= self.block <= _MOST_BLOCK:
            raise ValueError(
                f"codec: block={self.block!r} is not possible; "
                f"give a multiple of {_LEAST_BLOCK}, from {_LEAST_BLOCK} to {_MOST_BLOCK}"
            )

    @property
    def top(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def half(self) -> float:
        """The code, if there were one, of a block's middle."""
        return self.top / 2

    def blocks(self, count: int) -> int:
        """Blocks of so many elements."""
        return -(-count // self.block)

    def head_bytes(self, count: int) -> int:
        """Bytes of the heads of so many elements."""
        return HEAD_BYTES * self.blocks(count)

    def nbytes(self, count: int) -> int:
        """Bytes of so many encoded elements."""
        return self.head_bytes(count) + -(-count * self.bits // 8)
