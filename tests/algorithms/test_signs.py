# SPDX-License-Identifier: MIT
"""The codec of one bit against its formulas: in the library, and in torch's operations."""

from __future__ import annotations

import pytest
import torch

from bagua_net.algorithms._codec.signs import Signs

BLOCK = 64


class _InTorch(Signs):
    """As on a device: for comparison."""

    def encode_with_residual(self, x: torch.Tensor, residual: torch.Tensor, code: torch.Tensor) -> None:
        self.encode_in_torch(x, residual, *self._parts(code, x.numel()))

    def decode(self, code: torch.Tensor, out: torch.Tensor, *, adds: bool = False) -> None:
        self.decode_in_torch(*self._parts(code, out.numel()), out, adds=adds)


codecs = pytest.mark.parametrize("codec", [Signs(BLOCK), _InTorch(BLOCK)], ids=["library", "torch"])


def _expected(x: torch.Tensor) -> torch.Tensor:
    """What decoding gives: in each block, the signs times the mean magnitude of what is not zero."""
    out = torch.empty_like(x)
    for start in range(0, x.numel(), BLOCK):
        block = x[start : start + BLOCK]
        scale = block.abs().sum() / max(1, int(block.count_nonzero()))
        out[start : start + BLOCK] = torch.where(block.signbit(), -scale, scale)
    return out


@codecs
@pytest.mark.parametrize("elements", [1, 63, 64, 1000, 1024])
def test_signs_and_mean_magnitudes(elements: int, codec: Signs) -> None:
    draw = torch.Generator().manual_seed(elements)
    x, residual = torch.randn(elements, generator=draw), torch.randn(elements, generator=draw)
    x[::7] = residual[::7] = 0
    values = x + residual
    code = torch.full((codec.nbytes(2048),), 0xA5, dtype=torch.uint8)  # of more elements than there are
    codec.encode_with_residual(x, residual, code)
    decoded = torch.empty(elements)
    codec.decode(code, decoded)
    assert torch.allclose(decoded, _expected(values), rtol=1e-6, atol=0)
    assert torch.allclose(decoded + residual, values, rtol=0, atol=1e-6)
    before = decoded.clone()
    codec.decode(code, decoded, adds=True)
    assert torch.equal(decoded, 2 * before)
    blocks = -(-elements // BLOCK)
    written = torch.zeros_like(code, dtype=torch.bool)
    written[: blocks * BLOCK // 8] = True
    written[2048 // 8 :][: blocks * 4] = True
    assert (code[~written] == 0xA5).all()


@codecs
def test_a_block_that_is_not_finite_is_nan_and_keeps_nothing(codec: Signs) -> None:
    x, residual = torch.ones(3 * BLOCK), torch.zeros(3 * BLOCK)
    x[BLOCK] = torch.inf
    x[2 * BLOCK] = 2
    code = torch.zeros(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode_with_residual(x, residual, code)
    decoded = torch.empty_like(x)
    codec.decode(code, decoded)
    assert (decoded[:BLOCK] == 1).all()
    assert decoded[BLOCK : 2 * BLOCK].isnan().all()
    assert (residual[: 2 * BLOCK] == 0).all()
    assert residual[2 * BLOCK] > 0.9


def test_what_one_encodes_the_other_decodes() -> None:
    """The signs have the same bits. Magnitudes may differ in the last one, since sums have another order."""
    draw = torch.Generator().manual_seed(3)
    x, residual = torch.randn(1000, generator=draw), torch.randn(1000, generator=draw)
    x[::5] = residual[::5] = -0.0
    in_library, in_torch = Signs(BLOCK), _InTorch(BLOCK)
    codes = torch.zeros(2, in_library.nbytes(1024), dtype=torch.uint8)
    in_library.encode_with_residual(x, residual.clone(), codes[0])
    in_torch.encode_with_residual(x, residual.clone(), codes[1])
    assert torch.equal(codes[0, :128], codes[1, :128])
    decoded = torch.zeros(4, 1000)
    for number, code in enumerate(codes):
        in_library.decode(code, decoded[2 * number])
        in_torch.decode(code, decoded[2 * number + 1])
    assert torch.equal(decoded[0], decoded[1])
    assert torch.equal(decoded[2], decoded[3])
    assert torch.allclose(decoded[0], decoded[2], rtol=1e-6, atol=0)
