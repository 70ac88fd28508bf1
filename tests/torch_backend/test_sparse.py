# SPDX-License-Identifier: MIT
"""Sums of sparse tensors, and training with sparse gradients, as with gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

if TYPE_CHECKING:
    from tests.support.rank import Here

_ROWS = 50


def _sparse(rank: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    """What this rank adds: as many entries as it likes, some of them twice."""
    generator = torch.Generator().manual_seed(rank)
    count = {"empty": 0, "one has none": 7 * rank, "all alike": 12}.get(kind, 5 + 300 * rank)
    dense, places = {"scalars": ((), 2), "blocks": ((3, 2), 1)}.get(kind, ((4,), 1))
    indices = torch.randint(_ROWS, (places, count), generator=generator)
    values = torch.randint(-9, 9, (count, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*[_ROWS] * places, *dense), check_invariants=True)


def summed(here: Here, dtype: torch.dtype, kind: str) -> None:
    """Whole numbers, which sum exactly in any order."""
    ours, theirs = _sparse(here.rank, dtype, kind), _sparse(here.rank, dtype, kind)
    work = dist.all_reduce(ours, async_op=True)
    work.wait()
    assert work.result()[0] is ours
    dist.all_reduce(theirs, group=here.gloo)
    assert ours.is_coalesced() == theirs.is_coalesced()
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(ours.coalesce().indices(), theirs.coalesce().indices())


@pytest.mark.parametrize("kind", ["empty", "one has none", "all alike", "unlike", "scalars", "blocks"])
def test_sums_as_with_gloo(ranks: Ranks, kind: str) -> None:
    ranks.run(summed, torch.float32, kind)


@pytest.mark.gate
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64], ids=str)
def test_types(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(summed, dtype, "unlike")


def trained(here: Here, backend: str, options: dict[str, bool]) -> list[list[float]]:
    """Steps in which ranks look up different rows, rank 0 none in the second, and the weights after them."""
    torch.manual_seed(0)
    group = here.gloo if backend == "gloo" else None
    net = torch.nn.Sequential(torch.nn.Embedding(_ROWS, 8, sparse=True), torch.nn.Linear(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        count = 0 if (here.rank, step) == (0, 1) else 3 + here.rank
        rows = torch.randint(_ROWS, (count, 2), generator=torch.Generator().manual_seed(10 * step + here.rank))
        optimizer.zero_grad()
        model(rows).square().sum().backward()
        optimizer.step()
    return [weight.detach().flatten().tolist() for weight in net.parameters()]


@pytest.mark.parametrize(
    "options",
    variants({}, gate=[{"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"static_graph": True}]),
    ids=str,
)
def test_training_as_with_gloo(ranks: Ranks, options: dict[str, bool]) -> None:
    ours, theirs = ranks.run(trained, "bagua_net", options), ranks.run(trained, "gloo", options)
    for rank in range(ranks.size):
        assert ours[rank] == ours[0]
        for mine, other in zip(ours[rank], theirs[rank], strict=True):
            assert mine == pytest.approx(other, rel=1e-5)


def refused(here: Here) -> list[str]:
    told = [refusal(lambda op=op: dist.all_reduce(_sparse(0, torch.float32, "unlike"), op)) for op in _OTHERS]  # type: ignore[misc]
    told.append(refusal(lambda: dist.all_reduce(_sparse(0, torch.float32, "blocks" if here.rank else "unlike"))))
    told.append(refusal(lambda: dist.broadcast(_sparse(0, torch.float32, "unlike"), src=0)))
    summed(here, torch.float32, "unlike")
    return told


_OTHERS = (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG)


def test_what_is_refused(ranks: Ranks) -> None:
    """The group goes on afterwards."""
    for told in ranks.run(refused):
        assert all(
            text == "ValueError: all_reduce: sparse tensors can only be summed, with ReduceOp.SUM" for text in told[:4]
        )
        assert "rank 0 has a torch.float32 tensor of shape [50, 4]" in told[4]
        assert "rank 1 has a torch.float32 tensor of shape [50, 3, 2]" in told[4]
        assert "only all_reduce takes sparse ones; call to_dense()" in told[5]
