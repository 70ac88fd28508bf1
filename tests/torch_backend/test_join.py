# SPDX-License-Identifier: MIT
"""DDP's ``join``: ranks with different numbers of inputs. torch keeps only the C++ half of a work there."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks import Ranks
from tests.support.tiers import variants
from tests.torch_backend.cases import values
from tests.torch_backend.inside import forget_ended

if TYPE_CHECKING:
    from tests.support.rank import Here

_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)
_INPUTS = 2


class _Model(torch.nn.Module):  # type: ignore[misc]
    """The last layer takes part in no step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1), torch.nn.Linear(3, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(given))
        return out


def _model(here: Here, backend: str) -> DistributedDataParallel:
    torch.manual_seed(0)
    group = here.gloo if backend == "gloo" else None
    return DistributedDataParallel(_Model(), process_group=group, bucket_cap_mb=1e-5, find_unused_parameters=True)


def _inputs(here: Here) -> list[torch.Tensor]:
    """As many more as the rank's number."""
    return [values(torch.float32, (2, 4), 10 * number + here.rank) for number in range(_INPUTS + 2 * here.rank)]


def _forget() -> None:
    """All works that are over: the group does not keep them any more."""
    forget_ended(dist.group.WORLD)
    gc.collect()


def uneven(here: Here, backend: str, initial_size: bool) -> list[list[float]]:
    """The gradients of each step."""
    model, found = _model(here, backend), []
    with model.join(divide_by_initial_world_size=initial_size):
        for given in _inputs(here):
            model.zero_grad()
            loss = model(given).sum()
            _forget()
            loss.backward()
            found.append(
                torch.cat([each.grad.view(-1) for each in model.parameters() if each.grad is not None]).tolist()
            )
    return found


@pytest.mark.gate
@pytest.mark.parametrize("initial_size", variants(False, nightly=[True]))
def test_gradients_of_uneven_inputs_as_with_gloo(ranks: Ranks, initial_size: bool) -> None:
    ours, theirs = (ranks.run(uneven, backend, initial_size, seconds=60) for backend in ("bagua_net", "gloo"))
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert len(mine) == _INPUTS + 2 * rank
        for step, wanted in zip(mine, other, strict=True):
            assert step == pytest.approx(wanted, rel=1e-5)


def with_an_optimizer(here: Here, backend: str) -> list[float]:
    """torch's example: the optimizer joins as well, and all ranks end with the same parameters."""
    model = _model(here, backend)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=model.process_group, lr=0.1, momentum=0.9
    )
    with Join([model, optimizer], divide_by_initial_world_size=False):
        for given in _inputs(here):
            model.zero_grad()
            model(given).sum().backward()
            optimizer.step()
    end: list[float] = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()]).tolist()
    return end


@_TWO
def test_the_optimizer_joins_as_well(ranks: Ranks) -> None:
    ours, theirs = (ranks.run(with_an_optimizer, backend, seconds=60) for backend in ("bagua_net", "gloo"))
    assert ours[0] == ours[1]
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)


# ---- works that nobody asks any more ----


def freed(here: Here) -> tuple[int, int]:
    """How many works of ``join`` live after the steps, and once the module is gone."""
    model, before = _model(here, "bagua_net"), _works()
    with model.join(divide_by_initial_world_size=False):
        for given in _inputs(here):
            model(given).sum().backward()
    kept = _works() - before
    del model
    return kept, _works() - before


def _works() -> int:
    """How many of one element live that are over, as those are by which a rank says that it has an input."""
    kind = type(dist.barrier(async_op=True))
    dist.barrier()
    _forget()
    return sum(type(each) is kind and each.result()[0].numel() == 1 for each in gc.get_objects())


@_TWO
def test_a_module_keeps_one_work(ranks: Ranks) -> None:
    assert ranks.run(freed, seconds=60) == [(1, 0)] * 2


def dropped(here: Here, elements: int) -> int:
    """How many of 10,000 live after their end."""
    tensors = []
    for _ in range(10_000):
        tensor = torch.ones(elements)
        tensors.append(weakref.ref(tensor))
        dist.all_reduce(tensor, async_op=True)
    del tensor
    dist.barrier()
    _forget()
    return sum(tensor() is not None for tensor in tensors)


@pytest.mark.nightly
@pytest.mark.parametrize("elements", variants(1, nightly=[2]))
@_TWO
def test_works_that_are_dropped_are_freed(ranks: Ranks, elements: int) -> None:
    assert ranks.run(dropped, elements, seconds=60) == [0] * 2
