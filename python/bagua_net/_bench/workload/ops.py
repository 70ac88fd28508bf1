# SPDX-License-Identifier: MIT
"""The operations: buffer sizes, required results, and the byte counts of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A piece of a result: ``count`` elements of a stream, from its element ``start``."""

    source: int | None
    """The rank whose stream it is; None: the reduction of all ranks' streams."""
    start: int
    count: int


@dataclass(frozen=True)
class Op:
    name: str
    in_place: bool
    """One buffer, as in a training step; otherwise one to send and one to receive."""
    reduces: bool
    per_rank: bool
    """The large buffer holds one block of ``count`` elements for each rank."""
    send_blocks: bool
    receive_blocks: bool
    factor: Callable[[int], float]
    """busbw = algbw × factor(ranks)."""
    result: Callable[[int, int, int], list[Part]]
    """(rank, ranks, count) → the required content of the receive buffer."""

    def count(self, size: int, nranks: int, element_size: int) -> int:
        """The number of elements (of a block, where the operation works in blocks) in ``size`` bytes; at least one."""
        return max(1, size // element_size // (nranks if self.per_rank else 1))

    def size(self, count: int, nranks: int, element_size: int) -> int:
        """Bytes of the larger buffer."""
        return count * element_size * (nranks if self.per_rank else 1)

    def send_count(self, count: int, nranks: int) -> int:
        return count * nranks if self.send_blocks else count

    def receive_count(self, count: int, nranks: int) -> int:
        return count * nranks if self.receive_blocks else count


def _op(
    name: str,
    factor: Callable[[int], float],
    result: Callable[[int, int, int], list[Part]],
    *,
    in_place: bool = False,
    reduces: bool = False,
    send_blocks: bool = False,
    receive_blocks: bool = False,
) -> Op:
    blocks = send_blocks or receive_blocks
    return Op(name, in_place, reduces, blocks, send_blocks, receive_blocks, factor, result)


def _share(nranks: int) -> float:
    return (nranks - 1) / nranks


#: Factors: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md and the GetBw functions in its src/.
OPS = {
    op.name: op
    for op in (
        _op(
            "allreduce",
            lambda n: 2 * _share(n),
            lambda rank, n, count: [Part(None, 0, count)],
            in_place=True,
            reduces=True,
        ),
        _op(
            "reduce_scatter",
            _share,
            lambda rank, n, count: [Part(None, rank * count, count)],
            reduces=True,
            send_blocks=True,
        ),
        _op(
            "all_gather",
            _share,
            lambda rank, n, count: [Part(source, 0, count) for source in range(n)],
            receive_blocks=True,
        ),
        _op("broadcast", lambda n: 1.0, lambda rank, n, count: [Part(0, 0, count)], in_place=True),
        _op(
            "all_to_all",
            _share,
            lambda rank, n, count: [Part(source, rank * count, count) for source in range(n)],
            send_blocks=True,
            receive_blocks=True,
        ),
        _op("sendrecv", lambda n: 1.0, lambda rank, n, count: [Part((rank - 1) % n, 0, count)]),
    )
}
