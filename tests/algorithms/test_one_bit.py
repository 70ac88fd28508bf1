# SPDX-License-Identifier: MIT
"""Averages of one bit for each element: what they lose, and what is not finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bagua_net.algorithms._one_bit import OneBit
from tests.algorithms.models import group_of, mean_of, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks


def _one_bit_keeps(here: Here, backend: str) -> None:
    elements, block = 1000, 64
    one_bit = OneBit(group_of(here, backend), block)
    residual, owned, wanted, got = (torch.zeros(elements) for _ in range(4))
    draw = torch.Generator().manual_seed(here.rank)
    for step in range(20):
        x = torch.randn(elements, generator=draw)
        x[100:200] = x[800:900] = 0
        wanted += mean_of(here, x)
        sent = one_bit.average(x, residual, owned)
        assert same_on_all_ranks(here, {"mean": x})
        got += x
        if step == 9:  # as if DDP had put the parameters in another order
            residual, owned, wanted, got = (each.flip(0) for each in (residual, owned, wanted, got))
    share = -(-elements // (here.size * block)) * block
    assert sent == 2 * (here.size - 1) * (share // 8 + share // block * 4)
    missing = mean_of(here, residual) + mean_of(here, owned) * here.size
    assert torch.allclose(got + missing, wanted, rtol=0, atol=1e-4)
    assert (wanted - got).abs().max() > 0.1


def _one_bit_of_no_number(here: Here, backend: str) -> None:
    one_bit = OneBit(group_of(here, backend), 64)
    residual, owned, x = torch.zeros(256), torch.zeros(256), torch.ones(256)
    x[70] = torch.inf if here.rank == 1 else 1.0
    one_bit.average(x, residual, owned)
    assert x[64:128].isnan().all()
    assert (x[:64] == 1).all()
    assert (x[128:] == 1).all()
    one_bit.average(x.fill_(2.0), residual, owned)
    assert (x == 2).all()


@pytest.mark.parametrize("backend", ["bagua_net", "gloo"])
@pytest.mark.parametrize("what", [_one_bit_keeps, _one_bit_of_no_number])
def test_one_bit(ranks: Ranks, what: Callable[..., None], backend: str) -> None:
    ranks.run(what, backend)
