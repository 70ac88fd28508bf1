# SPDX-License-Identifier: MIT
"""The codec of one bit against its formulas, and what it works on: tensors in pieces."""

from __future__ import annotations

import pytest
import torch

from bagua_net.algorithms._codec import pieces as pieces_module
from bagua_net.algorithms._codec import signs as signs_module
from bagua_net.algorithms._codec.pieces import is_dense, pieces
from bagua_net.algorithms._codec.signs import Signs

BLOCK = 64


def _expected(x: torch.Tensor) -> torch.Tensor:
    """What decoding gives: in each block, the signs times the mean magnitude of what is not zero."""
    out = torch.empty_like(x)
    for start in range(0, x.numel(), BLOCK):
        block = x[start : start + BLOCK]
        scale = block.abs().sum() / max(1, int(block.count_nonzero()))
        out[start : start + BLOCK] = torch.where(block.signbit(), -scale, scale)
    return out


@pytest.mark.parametrize("at_once", [BLOCK, 3 * BLOCK, 1 << 17])
@pytest.mark.parametrize("elements", [1, 63, 64, 1000, 1024])
def test_signs_and_mean_magnitudes(monkeypatch: pytest.MonkeyPatch, elements: int, at_once: int) -> None:
    monkeypatch.setattr(signs_module, "AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(elements)
    x, residual = torch.randn(elements, generator=draw), torch.randn(elements, generator=draw)
    x[::7] = residual[::7] = 0
    values = x + residual
    codec = Signs(BLOCK)
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


def test_a_block_that_is_not_finite_is_nan_and_keeps_nothing() -> None:
    codec, x, residual = Signs(BLOCK), torch.ones(3 * BLOCK), torch.zeros(3 * BLOCK)
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


@pytest.mark.parametrize("at_once", [5, 100])
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(12),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(4, 6)[:, ::2],
        torch.zeros(()),
        torch.zeros(0),
    ],
    ids=["contiguous", "channels-last", "with-gaps", "scalar", "empty"],
)
def test_pieces_are_the_same_elements_of_each_and_all_of_them(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, at_once: int
) -> None:
    monkeypatch.setattr(pieces_module, "AT_ONCE", at_once)
    x = x.clone(memory_format=torch.preserve_format)
    other = torch.rand_like(x, memory_format=torch.preserve_format)
    contiguous = torch.arange(float(x.numel())).view(x.shape)
    for part, its in pieces(x, other):
        part.add_(its)
    for part, its in pieces(x, contiguous):
        part.add_(its)
    assert torch.equal(x, other + contiguous)


def test_many_pieces_of_a_dense_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "AT_ONCE", 8)
    x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert is_dense(x)
    assert not is_dense(x[:, ::2])
    assert [part.numel() for (part,) in pieces(x)] == [8] * 15
