# SPDX-License-Identifier: MIT
"""The codec in operations of torch, on any device. What the other implementations compute is compared with this one.

Each operation rounds by itself: nothing is fused. On CUDA torch divides by a Python number, or a tensor on the CPU, by
multiplying with its inverse, which rounds twice. So divisors are tensors on the device.
"""

from __future__ import annotations

import torch

from .format import Format

_NAN = float("nan")
#: The least normal float32: the inverse of a smaller step would overflow.
_LEAST_STEP = torch.finfo(torch.float32).tiny


# ---- encoding ----


def encode(form: Format, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """Encodes x, of any type of floats, plus the residual, which then has what encoding lost. ``out``: uint8."""
    values = with_residual(x, residual)
    whole = _whole_blocks(form, values)
    heads = _heads(form, whole)
    codes = _codes(form, whole, heads).flatten()[: values.numel()]
    head_bytes = form.head_bytes(values.numel())
    out[:head_bytes] = heads.view(torch.uint8).flatten()
    out[head_bytes:] = _packed(codes) if form.bits == 4 else codes
    if residual is not None:
        keep_lost(residual, values, _decoded(form, out, values.numel()))


def with_residual(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """Float32: x, which may be the result itself, or their sum."""
    return x.float() if residual is None else x.float() + residual


def keep_lost(residual: torch.Tensor, values: torch.Tensor, decoded: torch.Tensor) -> None:
    """The residual is what decoding does not give back. Where a block decodes to NaN it stays as it was: the step will
    be skipped, and the gradients of later steps must not inherit the NaN."""
    lost = values - decoded
    torch.where(lost.isfinite(), lost, residual, out=residual)


def _whole_blocks(form: Format, values: torch.Tensor) -> torch.Tensor:
    """Shape (blocks, block). The last element is repeated, which changes no range."""
    missing = form.blocks(values.numel()) * form.block - values.numel()
    return torch.cat((values, values[-1:].expand(missing))).view(-1, form.block)


def _order_of(bits: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats with these bits, or the reverse. -0 is below +0, NaN beyond infinity."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _heads(form: Format, whole: torch.Tensor) -> torch.Tensor:
    """Middle and step of each block, shape (blocks, 2)."""
    order = _order_of(whole.view(torch.int32))
    least, most = (_order_of(bound).view(torch.float32) for bound in (order.amin(1), order.amax(1)))
    low, high = least * 0.5, most * 0.5
    step = (high - low) / _number(form.half, whole)
    heads = torch.stack((low + high, torch.where(step < _LEAST_STEP, 0.0, step)), dim=1)
    finite = least.isfinite() & most.isfinite()
    return torch.where(finite[:, None], heads, _NAN)


def _codes(form: Format, whole: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """The nearest codes, in bytes; shape (blocks, block)."""
    middle, step = heads[:, :1], heads[:, 1:]
    inverse = torch.where(step > 0, _number(1, whole) / step, 0.0)
    exact = (whole - middle) * inverse + (form.half + 0.5)
    codes = torch.where(step.isnan(), 0.0, exact).to(torch.int32)
    return codes.clamp(0, form.top).to(torch.uint8)


def _packed(codes: torch.Tensor) -> torch.Tensor:
    pairs = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), value, dtype=torch.float32, device=like.device)


# ---- decoding ----


def decode(form: Format, encoded: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
    """Decodes into ``out``, of any type of floats, or adds to it in float32."""
    decoded = _decoded(form, encoded, out.numel())
    out.copy_(out.float() + decoded if adds else decoded)


def decode_sum_encode(
    form: Format, rows: torch.Tensor, count: int, divisor: float, residual: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Encodes the sum of what the rows decode to, by the divisor. ``rows``: uint8, shape (ranks, bytes of count)."""
    total = _decoded(form, rows[0], count)
    for row in rows[1:]:
        total += _decoded(form, row, count)
    divide(total, divisor)
    encode(form, total, residual, out)


def divide(values: torch.Tensor, divisor: float) -> None:
    """In place, in one rounding on every device."""
    if divisor != 1:
        values /= _number(divisor, values)


def _decoded(form: Format, encoded: torch.Tensor, count: int) -> torch.Tensor:
    """Float32, of count elements."""
    head_bytes = form.head_bytes(count)
    # A copy is aligned: encoded elements may begin anywhere.
    heads = encoded[:head_bytes].clone().view(torch.float32).view(-1, 2)
    codes = encoded[head_bytes:]
    whole = heads.new_zeros(heads.size(0) * form.block)
    whole[:count] = _unpacked(codes)[:count] if form.bits == 4 else codes
    values = heads[:, :1] + (whole.view(-1, form.block) - form.half) * heads[:, 1:]
    return values.flatten()[:count]


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack((packed & 15, packed >> 4), dim=1).flatten()
