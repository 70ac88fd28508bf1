# SPDX-License-Identifier: MIT
"""Operations on large tensors, a piece at a time."""

from __future__ import annotations

import pytest
import torch

from bagua_net.algorithms import _pieces as pieces_module
from bagua_net.algorithms._pieces import is_dense, pieces


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
