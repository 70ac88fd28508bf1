# SPDX-License-Identifier: MIT
# ruff: noqa: N803, N806  (constants of compilation are in capitals)
"""The codec on CUDA devices: three kernels in the language of Triton, with the bits of eager.py.

Each rounding counts. A compiler that fuses a product and a sum into one operation rounds once instead of twice, so the
kernels are compiled without fusion (:data:`OPTIONS`). Triton then writes ``mul.rn`` and ``add.rn``, which the assembler
does not fuse either. libdevice's ``mul_rn`` and ``add_rn`` would not do: Triton links them in the form that flushes
subnormal numbers to zero. ``/`` is an approximation in Triton, ``div_rn`` is not.

A program has BLOCKS blocks of BLOCK elements, in rows of WIDTH places: a power of two, as Triton needs it.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: How the kernels are compiled.
OPTIONS = {"enable_fp_fusion": False}

_MOST = tl.constexpr(0x7FFFFFFF)
_INFINITY_BITS = tl.constexpr(0x7F800000)
_INFINITY = tl.constexpr(float("inf"))
_NAN = tl.constexpr(float("nan"))
#: The least normal float: the inverse of a smaller step would overflow.
_LEAST_STEP = tl.constexpr(2.0**-126)


# ---- places ----


@triton.jit
def _own_blocks(BLOCKS: tl.constexpr):
    """Of this program. In 64 bits, as are the offsets that are computed from them."""
    return tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)


@triton.jit
def _places(blocks, count, PER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of count elements, PER of which share a place, and which of the offsets are there."""
    column = tl.arange(0, WIDTH // PER)[None, :]
    at = blocks[:, None] * (BLOCK // PER) + column
    return at, (column < BLOCK // PER) & (at * PER < count)


# ---- decoding ----


@triton.jit
def _values(codes, middle, step, BITS: tl.constexpr):
    HALF: tl.constexpr = (2**BITS - 1) / 2
    return middle[:, None] + (codes.to(tl.float32) - HALF) * step[:, None]


@triton.jit
def _decoded(heads, codes, blocks, count, BITS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    there = blocks * BLOCK < count
    middle = tl.load(heads + 2 * blocks, mask=there, other=0)
    step = tl.load(heads + 2 * blocks + 1, mask=there, other=0)
    at, inside = _places(blocks, count, 8 // BITS, BLOCK, WIDTH)
    code = tl.load(codes + at, mask=inside, other=0)
    if BITS == 4:
        code = tl.interleave(code & 15, code >> 4)
    return _values(code, middle, step, BITS)


@triton.jit
def decode(
    heads,
    codes,
    out,
    count,
    ADDS: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    blocks = _own_blocks(BLOCKS)
    at, inside = _places(blocks, count, 1, BLOCK, WIDTH)
    values = _decoded(heads, codes, blocks, count, BITS, BLOCK, WIDTH)
    if ADDS:
        values = tl.load(out + at, mask=inside, other=0).to(tl.float32) + values
    tl.store(out + at, values.to(out.dtype.element_ty), mask=inside)


# ---- encoding ----


@triton.jit
def _order_of(bits):
    """Integers in the order of the floats with these bits, or the reverse. -0 is below +0, NaN beyond infinity."""
    return bits ^ ((bits >> 31) & _MOST)


@triton.jit
def _range(values, inside):
    """The least and the largest value of each block, and whether both are finite."""
    order = _order_of(values.to(tl.int32, bitcast=True))
    least = tl.min(tl.where(inside, order, _MOST), axis=1)
    most = tl.max(tl.where(inside, order, -_MOST - 1), axis=1)
    finite = (least >= -_INFINITY_BITS) & (most < _INFINITY_BITS)  # -FLT_MAX has the order of the former
    return _order_of(least).to(tl.float32, bitcast=True), _order_of(most).to(tl.float32, bitcast=True), finite


@triton.jit
def _packed(codes, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    low, high = tl.split(tl.reshape(codes, [BLOCKS, WIDTH // 2, 2]))
    return low | (high << 4)


@triton.jit
def _encode(
    values,
    residual,
    before,
    heads,
    codes,
    blocks,
    count,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Encodes values, the sum of an input and what the residual was before. residual: None, or where it is stored."""
    TOP: tl.constexpr = 2**BITS - 1
    HALF: tl.constexpr = TOP / 2
    at, inside = _places(blocks, count, 1, BLOCK, WIDTH)
    least, most, finite = _range(values, inside)
    low, high = least * 0.5, most * 0.5
    step = tl.div_rn(high - low, HALF)
    step = tl.where(finite, tl.where(step < _LEAST_STEP, 0.0, step), _NAN)
    middle = tl.where(finite, low + high, _NAN)
    inverse = tl.where(step > 0, tl.div_rn(1.0, step), 0.0)

    exact = (values - middle[:, None]) * inverse[:, None] + (HALF + 0.5)
    code = tl.where(inside & finite[:, None], exact, 0.0).to(tl.int32)
    code = tl.minimum(tl.maximum(code, 0), TOP)
    if residual is not None:
        lost = values - _values(code, middle, step, BITS)
        tl.store(residual + at, tl.where(tl.abs(lost) < _INFINITY, lost, before), mask=inside)

    there = blocks * BLOCK < count
    tl.store(heads + 2 * blocks, middle, mask=there)
    tl.store(heads + 2 * blocks + 1, step, mask=there)
    if BITS == 4:
        code = _packed(code, BLOCKS, WIDTH)
    at, inside = _places(blocks, count, 8 // BITS, BLOCK, WIDTH)
    tl.store(codes + at, code.to(tl.uint8), mask=inside)


@triton.jit
def _with_residual(values, residual, at, inside):
    """The sum, and what the residual is."""
    before = values
    if residual is not None:
        before = tl.load(residual + at, mask=inside, other=0)
        values = values + before
    return values, before


@triton.jit
def encode(
    x,
    residual,
    heads,
    codes,
    count,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    blocks = _own_blocks(BLOCKS)
    at, inside = _places(blocks, count, 1, BLOCK, WIDTH)
    values = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    values, before = _with_residual(values, residual, at, inside)
    _encode(values, residual, before, heads, codes, blocks, count, BITS, BLOCK, WIDTH, BLOCKS)


@triton.jit
def decode_sum_encode(
    row_heads,
    row_codes,
    heads_stride,
    codes_stride,
    divisor,
    residual,
    heads,
    codes,
    count,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    blocks = _own_blocks(BLOCKS)
    at, inside = _places(blocks, count, 1, BLOCK, WIDTH)
    total = _decoded(row_heads, row_codes, blocks, count, BITS, BLOCK, WIDTH)
    for _ in range(1, ROWS):  # a constant: Triton 3.6 cannot interpret another limit with numpy 2.4
        row_heads += heads_stride
        row_codes += codes_stride
        total += _decoded(row_heads, row_codes, blocks, count, BITS, BLOCK, WIDTH)
    values, before = _with_residual(tl.div_rn(total, divisor), residual, at, inside)
    _encode(values, residual, before, heads, codes, blocks, count, BITS, BLOCK, WIDTH, BLOCKS)
