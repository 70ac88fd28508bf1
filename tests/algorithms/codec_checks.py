# SPDX-License-Identifier: MIT
"""Inputs for the codec, and the comparison of its implementations, bit by bit.

    different(native, Codec(8, 512), inputs("random", 1000)) == []

The implementations are compared with eager torch on the CPU. tests/algorithms/interpreted.py uses this without pytest.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from bagua_net.algorithms._codec import Codec, eager

FLT_MAX = torch.finfo(torch.float32).max
FLT_MIN = torch.finfo(torch.float32).tiny

#: Blocks of each kind: the least, the largest, the default, and one whose size is no power of two.
FORMATS = [Codec(bits, block) for bits in (8, 4) for block in (32, 96, 512, 4096)]
COUNTS = [1, 2, 31, 32, 33, 95, 511, 512, 513, 1024, 4097, 5001]
#: Of any finite bits; their ranges are extreme.
FINITE = [
    *("random", "layers", "wide", "bits", "subnormal", "little", "neighbours"),
    *("constant", "zeros", "signed zeros", "ends"),
]
KINDS = [*FINITE, "not finite", "any bits"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_CANARY = 0x55
_RANKS = 3


def inputs(kind: str, count: int, seed: int = 0) -> torch.Tensor:
    """Float32, the same for the same arguments."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{kind} {count} {seed}".encode()))
    normal = torch.randn(count, generator=generator)
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int32, generator=generator)
    if kind == "random":
        return normal
    if kind == "layers":  # ranges that differ, between blocks and within them, beside an offset
        at = torch.arange(count)
        return normal * torch.where(at // 700 % 3 == 0, 1e-4, 30.0) + torch.where(at // 900 % 2 == 0, 0.0, 5.0)
    if kind == "wide":
        return (torch.rand(count, generator=generator) * 2 - 1) * FLT_MAX
    if kind == "bits":
        return torch.nan_to_num(bits.view(torch.float32), 1.0, FLT_MAX, -FLT_MAX)
    if kind == "subnormal":
        return (bits & -0x7F800001).view(torch.float32)
    if kind == "little":  # steps around the least normal number
        return normal * (FLT_MIN * 128)
    if kind == "neighbours":  # a step is a fraction of what rounds the middle: codes beyond the ends
        return ((bits & 3) + 0x4B7FFFFC).view(torch.float32)
    if kind == "constant":
        return torch.full((count,), -1.0e38 / 3)
    if kind == "zeros":
        return torch.zeros(count)
    if kind == "signed zeros":
        return torch.where(normal > 0, 0.0, -0.0)
    if kind == "ends":
        return torch.where(normal > 0, FLT_MAX, -FLT_MAX)
    if kind == "not finite":
        beyond = torch.tensor([float("nan"), float("inf"), -float("inf")])
        normal[:: 1 + count // 3] = beyond.repeat(2)[: normal[:: 1 + count // 3].numel()]
        return normal
    assert kind == "any bits", kind
    return bits.view(torch.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Have they the same bits? Any NaN is as good as another."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    equal = a.view(integers) == b.view(integers)
    if a.is_floating_point():
        equal |= a.isnan() & b.isnan()
    return a.dtype == b.dtype and bool(equal.all())


class _Room:
    """Bytes for encoded elements in the middle of others, at any offset."""

    def __init__(self, codec: Codec, count: int, offset: int, device: str) -> None:
        size = codec.nbytes(count)
        self.all = torch.full((offset + size + 8,), _CANARY, dtype=torch.uint8, device=device)
        self.out = self.all[offset : offset + size]


def outcome(
    implementation: Any, codec: Codec, x: torch.Tensor, offset: int, device: str, dtypes: Sequence[torch.dtype]
) -> dict[str, torch.Tensor]:
    """Everything that the implementation does with x, by name, on the CPU."""
    count = x.numel()
    before = inputs("random", count, 1).to(device) * 0.01
    x = x.to(device)
    found = {}

    for dtype in dtypes:
        room = _Room(codec, count, offset, device)
        implementation.encode(codec, x.to(dtype), None, room.out)
        found[f"encoded {dtype}"] = room.all
        for adds in (False, True):
            decoded = before.to(dtype, copy=True)
            implementation.decode(codec, room.out, decoded, adds=adds)
            found[f"{'added' if adds else 'decoded'} {dtype}"] = decoded

    room, residual = _Room(codec, count, offset, device), before.clone()
    implementation.encode(codec, x, residual, room.out)
    found |= {"encoded with residual": room.all, "residual": residual}

    rows = torch.full((_RANKS, codec.nbytes(count) + 2 * offset), _CANARY, dtype=torch.uint8, device=device)
    rows = rows[:, offset : offset + codec.nbytes(count)]
    for rank, row in enumerate(rows):
        eager.encode(codec, x if rank == 1 else inputs("random", count, rank).to(device), None, row)
    for name, residual in {"": None, " with residual": before.clone()}.items():
        room = _Room(codec, count, offset, device)
        implementation.decode_sum_encode(codec, rows, count, float(_RANKS), residual, room.out)
        found[f"sum{name}"] = room.all
        if residual is not None:
            found["residual of the sum"] = residual
    return {name: tensor.cpu() for name, tensor in found.items()}


def different(
    implementation: Any,
    codec: Codec,
    x: torch.Tensor,
    *,
    offset: int = 0,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> list[str]:
    """The names of the results in which the implementation, on this device, differs from eager torch on the CPU.

    Args:
        offset: bytes before the encoded elements.
        dtypes: of what is encoded and decoded.
    """
    own = outcome(implementation, codec, x, offset, device, dtypes)
    wanted = outcome(eager, codec, x, offset, "cpu", dtypes)
    return [name for name, tensor in wanted.items() if not same(own[name], tensor)]


def cases() -> dict[str, tuple[Codec, str, int, int]]:
    """A selection for implementations that are slow: a form of the codec, a kind of input, a count, an offset. Every
    form has every kind and every count."""
    found = {}
    for number, form in enumerate(FORMATS):
        for turn in range(max(len(KINDS), len(COUNTS))):
            kind, count = KINDS[(turn + number) % len(KINDS)], COUNTS[turn % len(COUNTS)]
            found[f"{form.bits} bits, block {form.block}, {kind}, {count}"] = form, kind, count, turn % 3 % 2
    return found
