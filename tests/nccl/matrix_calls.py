# SPDX-License-Identifier: MIT
"""Runs cells on a rank, and compares every byte of their buffers and around them with what must be there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.nccl import emulated
from tests.nccl.matrix_cells import Cell
from tests.nccl.matrix_values import PREMULSUM_DEVICE, TYPES, Data, Raw, Type, data, fill

_GUARD_BYTES = 1024
_GUARD = 0xA5
#: As of memory that cudaMalloc gives.
_ALIGNMENT = 256
#: Cells that are on the stream at once.
_MOST_CELLS = 16
_MOST_BYTES = 32 << 20
_DEVICE_SCALAR = 0


class Buffer:
    """Elements between guards, in the memory that NCCL gets; and what must be in that memory in the end."""

    def __init__(self, kind: Type, count: int, shift: int) -> None:
        self._kind = kind
        self.size = (shift + count) * kind.size + 2 * _GUARD_BYTES
        memory = np.full(self.size + _ALIGNMENT, _GUARD, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        self._memory = memory[start : start + self.size]
        self._at = _GUARD_BYTES + shift * kind.size
        self._given: list[tuple[int, Raw, int, int]] = []
        self._wanted: list[tuple[int, Raw, int, int]] = []

    def address(self, element: int = 0) -> int:
        return int(self._memory.ctypes.data) + self._at + element * self._kind.size

    def put(self, element: int, stream: Raw, first: int, count: int) -> None:
        """Fills elements from ``element`` on with a part of a stream."""
        self._given.append((element, stream, first, count))
        self._write(self._memory, self._given[-1])

    def want(self, element: int, stream: Raw, first: int, count: int) -> None:
        """NCCL is to write this. Everything else must stay as it is."""
        self._wanted.append((element, stream, first, count))

    def problem(self) -> str:
        """How the memory differs from what must be there; "": not at all."""
        image = np.full(self.size, _GUARD, np.uint8)
        for piece in (*self._given, *self._wanted):
            self._write(image, piece)
        if np.array_equal(image, self._memory):
            return ""
        places = np.flatnonzero(image != self._memory)
        place = int(places[0])
        element, byte = divmod(place - self._at, self._kind.size)
        there, wanted = (memory[place : place + 16].tobytes().hex(" ") for memory in (self._memory, image))
        return f"{len(places)} bytes are wrong, first byte {byte} of element {element}: {there} instead of {wanted}"

    def _write(self, memory: NDArray[np.uint8], piece: tuple[int, Raw, int, int]) -> None:
        element, stream, first, count = piece
        start = self._at + element * self._kind.size
        fill(memory[start : start + count * self._kind.size].view(self._kind.raw), stream, first)


@dataclass
class Prepared:
    """A cell that can be launched."""

    launch: Callable[[], None]
    buffers: dict[str, Buffer] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(buffer.size for buffer in self.buffers.values())


def block(source: int, destination: int, count: int) -> int:
    """Elements that a rank sends to another one, or to itself, where blocks are unequal; some are empty."""
    return (3 * source + 2 * destination + 1) % 4 * count


class Calls:
    """The calls of one communicator."""

    def __init__(self, nccl: emulated.Nccl, comm: emulated.Comm, rank: int, ranks: int) -> None:
        self._nccl = nccl
        self._comm = comm
        self._rank = rank
        self._ranks = ranks
        self._stream = nccl.stream()
        self._reductions: dict[tuple[str, str], tuple[int, Any]] = {}

    def close(self) -> None:
        for code, _ in self._reductions.values():
            self._comm.red_op_destroy(code)
        self._stream.destroy()

    # ---- running ----

    def run(self, cells: Sequence[Cell]) -> Iterator[tuple[int, str]]:
        """Runs all cells, several at once; the number of each that is wrong, and what is."""
        for batch in self._batches(cells):
            for _, prepared in batch:
                prepared.launch()
            self._stream.synchronize()
            for number, prepared in batch:
                for name, buffer in prepared.buffers.items():
                    problem = buffer.problem()
                    if problem:
                        yield number, f"{cells[number].name}: {name}: {problem}"

    def refusal(self, cell: Cell) -> str:
        """The error of a cell that this release must refuse; "": it did not."""
        prepared = self._prepare(cell)
        try:
            prepared.launch()
        except emulated.NcclFailed as error:
            return str(error)
        self._stream.synchronize()
        return ""

    def _batches(self, cells: Sequence[Cell]) -> Iterator[list[tuple[int, Prepared]]]:
        batch: list[tuple[int, Prepared]] = []
        for number, cell in enumerate(cells):
            batch.append((number, self._prepare(cell)))
            if len(batch) == _MOST_CELLS or sum(prepared.size for _, prepared in batch) > _MOST_BYTES:
                yield batch
                batch = []
        if batch:
            yield batch

    # ---- preparing ----

    def _prepare(self, cell: Cell) -> Prepared:
        if cell.parts:
            return self._group([self._prepare(each) for each in cell.parts])
        prepare: Callable[[Cell, Type, Data], Prepared] = getattr(self, f"_{cell.op}")
        return prepare(cell, TYPES[cell.dtype], data(cell.dtype, cell.reduction, self._ranks))

    def _group(self, prepared: list[Prepared]) -> Prepared:
        def launch() -> None:
            with self._nccl.group():
                for each in prepared:
                    each.launch()

        buffers = {f"{n}: {name}": made for n, one in enumerate(prepared) for name, made in one.buffers.items()}
        return Prepared(launch, buffers)

    def _reduction(self, cell: Cell, values: Data) -> int:
        """NCCL's number of the cell's reduction."""
        if not cell.reduction.startswith("premulsum"):
            return emulated.RedOp[cell.reduction.upper()]
        key = (cell.dtype, cell.reduction)
        if key not in self._reductions:
            scalar, code = values.scalars[self._rank].copy(), TYPES[cell.dtype].code
            made = emulated.ffi.new("int *")
            if cell.reduction == PREMULSUM_DEVICE:
                pointer = emulated.ffi.cast("void *", scalar.ctypes.data)
                self._nccl.call("ncclRedOpCreatePreMulSum", made, pointer, code, _DEVICE_SCALAR, self._comm.handle)
                self._reductions[key] = (int(made[0]), scalar)  # read when a kernel runs: it has to live
            else:
                self._reductions[key] = (self._comm.red_op_create_pre_mul_sum(scalar.tobytes(), code), None)
        return self._reductions[key][0]

    # ---- collectives ----

    def _all_reduce(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        buffers = _pair(cell, kind, cell.count, cell.count)
        send, receive = buffers["send"], buffers.get("receive", buffers["send"])
        send.put(0, values.inputs[self._rank], cell.first, cell.count)
        receive.want(0, values.reduced, cell.first, cell.count)
        code, op = kind.code, self._reduction(cell, values)
        at = send.address(), receive.address()
        return Prepared(lambda: self._comm.all_reduce(*at, cell.count, code, op, self._stream), buffers)

    def _reduce(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        buffers = _pair(cell, kind, cell.count, cell.count)
        send, receive = buffers["send"], buffers.get("receive", buffers["send"])
        send.put(0, values.inputs[self._rank], cell.first, cell.count)
        if self._rank == cell.root:
            receive.want(0, values.reduced, cell.first, cell.count)
        code, op = kind.code, self._reduction(cell, values)
        at = send.address(), receive.address()
        return Prepared(lambda: self._comm.reduce(*at, cell.count, code, op, cell.root, self._stream), buffers)

    def _reduce_scatter(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        buffers = _pair(cell, kind, self._ranks * cell.count, cell.count)
        send, receive = buffers["send"], buffers.get("receive", buffers["send"])
        own = self._rank * cell.count
        at = own if cell.in_place else 0
        send.put(0, values.inputs[self._rank], cell.first, self._ranks * cell.count)
        receive.want(at, values.reduced, cell.first + own, cell.count)
        code, op = kind.code, self._reduction(cell, values)
        ends = send.address(), receive.address(at)
        return Prepared(lambda: self._comm.reduce_scatter(*ends, cell.count, code, op, self._stream), buffers)

    def _all_gather(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        buffers = _pair(cell, kind, self._ranks * cell.count if cell.in_place else cell.count, self._ranks * cell.count)
        send, receive = buffers["send"], buffers.get("receive", buffers["send"])
        at = self._rank * cell.count if cell.in_place else 0
        send.put(at, values.inputs[self._rank], cell.first, cell.count)
        for source, theirs in enumerate(values.inputs):
            receive.want(source * cell.count, theirs, cell.first, cell.count)
        ends = send.address(at), receive.address()
        return Prepared(lambda: self._comm.all_gather(*ends, cell.count, kind.code, self._stream), buffers)

    def _broadcast(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        buffers = _pair(cell, kind, cell.count, cell.count)
        send, receive = buffers["send"], buffers.get("receive", buffers["send"])
        send.put(0, values.inputs[self._rank], cell.first, cell.count)
        receive.want(0, values.inputs[cell.root], cell.first, cell.count)
        at = send.address(), receive.address()
        return Prepared(lambda: self._comm.broadcast(*at, cell.count, kind.code, cell.root, self._stream), buffers)

    # ---- sends and receives ----

    def _ring(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        following, preceding = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        return self._transfers(cell, kind, values, {following: cell.count}, {preceding: cell.count})

    def _all_to_all(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        everyone = range(self._ranks)
        sends = {peer: block(self._rank, peer, cell.count) for peer in everyone}
        return self._transfers(
            cell, kind, values, sends, {peer: block(peer, self._rank, cell.count) for peer in everyone}
        )

    def _gather(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        receives = {peer: block(peer, cell.root, cell.count) for peer in range(self._ranks)}
        sends = {cell.root: receives[self._rank]}
        return self._transfers(cell, kind, values, sends, receives if self._rank == cell.root else {})

    def _scatter(self, cell: Cell, kind: Type, values: Data) -> Prepared:
        sends = {peer: block(cell.root, peer, cell.count) for peer in range(self._ranks)}
        receives = {cell.root: sends[self._rank]}
        return self._transfers(cell, kind, values, sends if self._rank == cell.root else {}, receives)

    def _transfers(
        self, cell: Cell, kind: Type, values: Data, sends: dict[int, int], receives: dict[int, int]
    ) -> Prepared:
        """Elements by peer. In the buffers there is an element between two blocks."""
        outgoing, incoming = _places(sends), _places(receives)
        send = Buffer(kind, sum(sends.values()) + len(sends), cell.send_shift)
        receive = Buffer(kind, sum(receives.values()) + len(receives), cell.receive_shift)
        for peer, place in outgoing.items():
            send.put(place, values.inputs[self._rank], cell.first + 1009 * peer, sends[peer])
        for peer, place in incoming.items():
            receive.want(place, values.inputs[peer], cell.first + 1009 * self._rank, receives[peer])

        def launch() -> None:
            with self._nccl.group():
                for peer, place in outgoing.items():
                    self._comm.send(send.address(place), sends[peer], kind.code, peer, self._stream)
                for peer, place in incoming.items():
                    self._comm.recv(receive.address(place), receives[peer], kind.code, peer, self._stream)

        return Prepared(launch, {"send": send, "receive": receive})


def _places(counts: dict[int, int]) -> dict[int, int]:
    starts = itertools.accumulate((count + 1 for count in counts.values()), initial=0)
    return dict(zip(counts, starts, strict=False))


def _pair(cell: Cell, kind: Type, sent: int, received: int) -> dict[str, Buffer]:
    """The two buffers, or the one that is both."""
    send = Buffer(kind, sent, cell.send_shift)
    return {"send": send} if cell.in_place else {"send": send, "receive": Buffer(kind, received, cell.receive_shift)}
