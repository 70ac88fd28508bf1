# SPDX-License-Identifier: MIT
"""A rank that is gone, or stands still, ends the others with an error: algorithms whose own tests do not show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, Auto, DiLoCo, QAdamOptimizer, attach
from tests.algorithms.inside import cannot_begin
from tests.algorithms.models import SMALL_BUCKETS, backward, ddp, exact_gradients, gradients, net
from tests.algorithms.survivor import survivor, waiting
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

Made = tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]


def _with_auto(here: Here) -> Made:
    model = ddp(here, "bagua_net")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, attach(model, optimizer, Auto(trial_steps=1))


def _with_momentum(here: Here) -> Made:
    model = ddp(here, "bagua_net")
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=1)
    return model, optimizer, attach(model, optimizer, "qadam")


def _with_shards(here: Here) -> Made:
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, attach(model, optimizer, "bytegrad")


def _with_replicas(here: Here) -> Made:
    mesh = init_device_mesh("cpu", (here.size, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(net(), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, attach(model, optimizer, "bytegrad", replicate=mesh["replicate"])


def _loses(here: Here, makes: Callable[[Here], Made]) -> str:
    model, optimizer, comm = makes(here)

    def step(number: int) -> None:
        optimizer.zero_grad()
        backward(here, model, number)
        optimizer.step()

    for number in range(3):
        step(number)
    here.say(f"trained/{here.rank}")
    raised = "accepted"
    while raised == "accepted":  # until the other one is gone
        raised = refusal(lambda: step(0))
    comm.detach()
    here.say("ended")
    return raised


@pytest.mark.parametrize("makes", variants(_with_momentum, nightly=[_with_replicas, _with_auto, _with_shards]))
def test_a_rank_that_dies_ends_the_other_with_an_error_that_names_it(makes: Callable[[Here], Made]) -> None:
    assert "rank 1" in survivor(_loses, makes)


def _soon(algorithm: Any, here: Here) -> Made:
    """On a group with a short timeout."""
    group: Any = dist.new_group(backend="bagua_net", timeout=timedelta(seconds=8))
    model = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=SMALL_BUCKETS, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, attach(model, optimizer, algorithm)


def _soon_gradients(here: Here) -> Made:
    return _soon("bytegrad", here)


def _soon_weights(here: Here) -> Made:
    return _soon(DiLoCo(steps=1), here)


@pytest.mark.nightly
@pytest.mark.parametrize("makes", variants(_soon_gradients, nightly=[_soon_weights]))
def test_a_rank_that_stands_still_ends_the_other_in_the_groups_timeout(makes: Callable[[Here], Made]) -> None:
    said = waiting(_loses, makes)
    assert "rank 0 waited 8 s for rank 1" in said, said


# ---- a rank that cannot begin ----


def _one_cannot_begin(here: Here, algorithm: str, what: str) -> str:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with cannot_begin(what) if here.rank == 1 else nullcontext():
        refused = refusal(lambda: attach(model, optimizer, algorithm))
    assert not optimizer._optimizer_step_pre_hooks
    exact = exact_gradients(here, model, 0)
    backward(here, model, 0)
    assert all(torch.allclose(each, exact[name]) for name, each in gradients(model).items())
    attach(model, optimizer, algorithm).detach()
    return refused


@pytest.mark.parametrize(
    ("algorithm", "what"), [("bytegrad", "bytegrad"), ("async", "async"), ("bytegrad", "its runner")]
)
def test_where_one_rank_cannot_begin_none_does(two: Ranks, algorithm: str, what: str) -> None:
    others, own = two.run(_one_cannot_begin, algorithm, what)
    assert own == "MemoryError: no such luck"
    assert others == "ValueError: bagua_net.algorithms: attach: rank 1 refuses: MemoryError: no such luck"
