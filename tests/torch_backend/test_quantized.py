# SPDX-License-Identifier: MIT
"""Compressed reductions of torch tensors: bound, residuals, order among other operations, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import all_reduce_quantized, reduce_scatter_quantized
from tests.support.ranks import Ranks, refusal
from tests.support.traffic import bytes_sent

pytestmark = pytest.mark.gate

if TYPE_CHECKING:
    from tests.support.rank import Here

#: What float32 rounds, for sums of the values below.
_ROUNDING = 1e-4
_COUNTS = (0, 1, 513, 40_001)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((3, 3), id="3-hosts"),
        pytest.param((2, 2), id="2-hosts", marks=pytest.mark.nightly),
        pytest.param((4, 2), id="2-hosts-of-2", marks=pytest.mark.nightly),
    ],
)
def apart(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks of several hosts: within one, nothing is compressed."""
    size, hosts = request.param
    with Ranks(size, hosts=hosts) as ranks:
        yield ranks


def _values(rank: int, count: int, call: int = 0) -> torch.Tensor:
    """The ranges of its blocks differ."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    values = torch.randn(count, generator=generator)
    return values * torch.logspace(-2, 1, 4).repeat_interleave(-(-count // 4))[:count]


def _exact(size: int, count: int, op: Any, call: int = 0) -> torch.Tensor:
    total = sum((_values(rank, count, call).double() for rank in range(size)), torch.zeros(count).double())
    return total / size if op == dist.ReduceOp.AVG else total


def _step(values: torch.Tensor, bits: int, block: int) -> torch.Tensor:
    """Of each element: its block's."""
    if values.numel() == 0:
        return values
    steps = [(part.max() - part.min()) / (2**bits - 1) for part in values.split(block)]
    return torch.stack(steps).repeat_interleave(block)[: values.numel()]


def _bound(size: int, count: int, op: Any, bits: int, block: int, *, result: bool) -> torch.Tensor:
    """Half a step of every rank's elements, and of the result's, whose range is a little wider than the exact one's.

    A host's sum has no larger step than its ranks' elements together.
    """
    steps = sum(
        (_step(_values(rank, count).double(), bits, block) for rank in range(size)), torch.zeros(count).double()
    )
    bound = steps / 2 / (size if op == dist.ReduceOp.AVG else 1)
    if result:
        bound = bound + (_step(_exact(size, count, op), bits, block) + 2 * bound / (2**bits - 1)) / 2
    return bound + _ROUNDING


# ---- results ----


def reduced(here: Here, op_name: str, bits: int, block: int, count: int, later: bool) -> list[str]:
    """What is wrong with both reductions; the result of the first goes to all ranks."""
    op, wrong = getattr(dist.ReduceOp, op_name), []
    tensor = _values(here.rank, count)
    work = all_reduce_quantized(tensor, op, bits=bits, block=block, async_op=later)
    if (work is not None) != later:
        wrong.append(f"a work: {work}")
    if work is not None:
        work.wait()
    error = (tensor - _exact(here.size, count, op)).abs()
    if bool((error > _bound(here.size, count, op, bits, block, result=True)).any()):
        wrong.append(f"all_reduce: {error.max()}")
    gathered = [torch.empty_like(tensor) for _ in range(here.size)]
    dist.all_gather(gathered, tensor)
    if not all(torch.equal(each, tensor) for each in gathered):
        wrong.append("the ranks differ")
    part = count // here.size
    output, values = torch.full((part,), 77.0), _values(here.rank, part * here.size)
    work = reduce_scatter_quantized(output, values, op, bits=bits, block=block, async_op=later)
    if work is not None:
        work.wait()
    own = slice(here.rank * part, (here.rank + 1) * part)
    error = (output - _exact(here.size, part * here.size, op)[own]).abs()
    # Blocks begin at the parts: of the bound only the largest is the same.
    if part > 0 and error.max() > _bound(here.size, part * here.size, op, bits, 4096, result=False).max():
        wrong.append(f"reduce_scatter: {error.max()}")
    return wrong


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("op", ["AVG", "SUM"])
def test_the_error_is_bounded_and_the_ranks_agree(apart: Ranks, op: str, bits: int) -> None:
    for i, count in enumerate(_COUNTS):
        assert apart.run(reduced, op, bits, (512, 32)[i % 2], count, i % 2 == 0) == [[]] * apart.size, count


def few_bytes(here: Here) -> int:
    tensor, sent = torch.ones(100_000), []
    for work in (lambda: dist.barrier(), lambda: all_reduce_quantized(tensor, bits=4)):
        work()
        sent.append(bytes_sent())
    return sent[1] - sent[0]


def test_codes_are_sent_instead_of_elements() -> None:
    """Between two ranks: half of the elements there, half of the result back, at half a byte each."""
    with Ranks(2, hosts=2) as ranks:
        assert all(50_000 <= sent <= 60_000 for sent in ranks.run(few_bytes))


def exact(here: Here) -> bool:
    tensor, residual = _values(here.rank, 1000), torch.full((1000,), 0.5)
    all_reduce_quantized(tensor, dist.ReduceOp.SUM, residual=residual)
    exact = _exact(here.size, 1000, dist.ReduceOp.SUM)
    return torch.allclose(tensor, exact.float(), rtol=1e-6, atol=1e-6) and bool((residual == 0.5).all())


def test_one_host_reduces_exactly(ranks: Ranks) -> None:
    assert all(ranks.run(exact))


# ---- residuals ----


def kept(here: Here, op_name: str, bits: int) -> tuple[float, float]:
    """(what is missing in the end, what would be without the residuals), at most, relative to one call."""
    op, count, calls = getattr(dist.ReduceOp, op_name), 5001, 20
    residual, results = torch.zeros(count), torch.zeros(count).double()
    exact = torch.zeros(count).double()
    for call in range(calls):
        tensor = _values(here.rank, count, call)
        all_reduce_quantized(tensor, op, bits=bits, block=64, residual=residual)
        results += tensor
        exact += _exact(here.size, count, op, call)
    left = residual.double()
    dist.all_reduce(left)
    if op == dist.ReduceOp.AVG:
        left /= here.size
    return float((results + left - exact).abs().max()), float((results - exact).abs().max())


@pytest.mark.parametrize(("op", "bits"), [("AVG", 8), ("SUM", 4)])
def test_residuals_hold_what_was_lost(apart: Ranks, op: str, bits: int) -> None:
    for missing, without in apart.run(kept, op, bits):
        assert missing < 20 * _ROUNDING < without


# ---- as the other operations ----


def in_order(here: Here) -> list[float]:
    """Asynchronous operations of both kinds, waited for from the last one on."""
    one, two = torch.ones(1000), torch.ones(1000)
    works = [
        dist.all_reduce(one, async_op=True),
        all_reduce_quantized(one, dist.ReduceOp.SUM, async_op=True),
        dist.all_reduce(two, async_op=True),
        all_reduce_quantized(two, async_op=True),
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
        assert work.is_completed()
    return [float(one[0]), float(two[0])]


def test_the_order_is_that_of_the_calls(apart: Ranks) -> None:
    for one, two in apart.run(in_order):
        assert (one, two) == (apart.size**2, apart.size)


def watched(here: Here) -> tuple[dict[str, int], int, list[int]]:
    from torch.distributed.tensor.debug import CommDebugMode

    before = dist.group.WORLD._get_sequence_number_for_group()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, CommDebugMode() as mode:
        all_reduce_quantized(torch.ones(3))
        reduce_scatter_quantized(torch.ones(3), torch.ones(3 * here.size))
    spans = {event.key: event.count for event in profile.key_averages() if event.key.startswith("bagua_net:")}
    return (
        {key: count for key, count in spans.items() if not key.endswith(" wait")},
        dist.group.WORLD._get_sequence_number_for_group() - before,
        list(mode.get_comm_counts().values()),
    )


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_tools_see_them(ranks: Ranks) -> None:
    for seen in ranks.run(watched):
        assert seen == ({"bagua_net:all_reduce_quantized": 1, "bagua_net:reduce_scatter_quantized": 1}, 2, [1, 1])


def differing(here: Here) -> str:
    group = dist.new_group()
    told = refusal(lambda: all_reduce_quantized(torch.ones(5000), bits=8 if here.rank == 0 else 4, group=group))
    dist.destroy_process_group(group)
    return told


def test_ranks_with_different_codecs(apart: Ranks) -> None:
    told = apart.run(differing)
    assert all(each.startswith("DistBackendError: ") for each in told)
    assert "8 bits, blocks of 512" in told[0]
    assert "4 bits, blocks of 512" in told[0]


def of_a_part(here: Here) -> list[float] | None:
    """Only the last two ranks are in the group."""
    group = dist.new_group([here.size - 2, here.size - 1])
    tensor = torch.full((3,), float(here.rank))
    all_reduce_quantized(tensor, group=group)
    got: list[float] = tensor.tolist()
    return got


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.filterwarnings("ignore:all_reduce_quantized. this rank is not in the group")
def test_a_group_of_some_ranks(ranks: Ranks) -> None:
    assert ranks.run(of_a_part) == [[0.0] * 3, [1.5] * 3, [1.5] * 3]


# ---- refusals ----


def refused(here: Here) -> dict[str, str]:
    ones, wide = torch.ones(64), torch.ones(2, 64)
    calls: dict[str, Callable[[], Any]] = {
        "another type": lambda: all_reduce_quantized(ones.double()),
        "not contiguous": lambda: all_reduce_quantized(wide.t()),
        "another device": lambda: all_reduce_quantized(torch.ones(3, device="meta")),
        "no tensor": lambda: all_reduce_quantized([1.0]),
        "another reduction": lambda: all_reduce_quantized(ones, dist.ReduceOp.MAX),
        "bits": lambda: all_reduce_quantized(ones, bits=2),
        "block": lambda: all_reduce_quantized(ones, block=100),
        "residual's shape": lambda: all_reduce_quantized(ones, residual=torch.zeros(2, 32)),
        "residual's type": lambda: all_reduce_quantized(ones, residual=torch.zeros(64).half()),
        "residual's memory": lambda: all_reduce_quantized(ones, residual=ones),
        "sizes": lambda: reduce_scatter_quantized(ones, ones),
        "another backend": lambda: all_reduce_quantized(ones, group=here.gloo),
    }
    return {name: refusal(call) for name, call in calls.items()}


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_what_is_refused(ranks: Ranks) -> None:
    expected = {
        "another type": "ValueError: all_reduce_quantized: the tensor must be of torch.float32, not torch.float64",
        "not contiguous": "ValueError: all_reduce_quantized: the tensor must be contiguous",
        "another device": "ValueError: all_reduce_quantized: the bagua_net backend takes CPU tensors",
        "no tensor": "TypeError: all_reduce_quantized: a tensor is needed, not list",
        "another reduction": "cannot be compressed; use ReduceOp.AVG or SUM",
        "bits": "ValueError: all_reduce_quantized: bits=2; take 8 or 4",
        "block": "ValueError: all_reduce_quantized: block=100; take a multiple of 32 up to 4096",
        "residual's shape": "the residual must have the shape of what is reduced, [64], not [2, 32]",
        "residual's type": "the residual must be of torch.float32, not torch.float16",
        "residual's memory": "the residual must have memory of its own",
        "sizes": "ValueError: reduce_scatter_quantized: the larger tensor must have 2 × the elements",
        "another backend": "TypeError: all_reduce_quantized: a group of the bagua_net backend is needed, not of gloo",
    }
    for told in ranks.run(refused):
        for name, text in expected.items():
            assert text in told[name], name
