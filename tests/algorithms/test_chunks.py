# SPDX-License-Identifier: MIT
"""Operations on large tensors, a chunk at a time."""

from __future__ import annotations

import pytest
import torch

from bagua_net.algorithms import _chunks as chunks_module
from bagua_net.algorithms._chunks import chunks, is_dense


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
def test_chunks_are_the_same_elements_of_each_and_all_of_them(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, at_once: int
) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_ELEMENTS", at_once)
    x = x.clone(memory_format=torch.preserve_format)
    other = torch.rand_like(x, memory_format=torch.preserve_format)
    contiguous = torch.arange(float(x.numel())).view(x.shape)
    for part, its in chunks(x, other):
        part.add_(its)
    for part, its in chunks(x, contiguous):
        part.add_(its)
    assert torch.equal(x, other + contiguous)


def test_many_chunks_of_a_dense_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_ELEMENTS", 8)
    x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert is_dense(x)
    assert not is_dense(x[:, ::2])
    assert [part.numel() for (part,) in chunks(x)] == [8] * 15
