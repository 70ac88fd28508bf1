# SPDX-License-Identifier: MIT
"""Algorithms on what torch.compile returns: a module around the distributed one, as accelerate's ``prepare`` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bagua_net.algorithms import Decentralized, DiLoCo, attach
from tests.algorithms.models import WIDTH, backward, ddp
from tests.support.rank import Here
from tests.support.ranks import Ranks

pytestmark = pytest.mark.gate

_STEPS = 4
_Wrap = Callable[[Here, nn.Module], nn.Module]


class _Net(nn.Module):  # type: ignore[misc]
    """torch compiles nothing of a DistributedDataParallel around a plain ``nn.Sequential``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, 40), nn.Linear(40, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def _in_ddp(here: Here, module: nn.Module) -> nn.Module:
    return ddp(here, "bagua_net", module, bucket_cap_mb=1)  # the smallest that torch compiles


def _sharded(here: Here, module: nn.Module) -> nn.Module:
    return fully_shard(module, mesh=init_device_mesh("cpu", (here.size,)))


def _trained(here: Here, model: nn.Module, called: nn.Module, algorithm: Any) -> list[torch.Tensor]:
    """called: the model, or what torch.compile made of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(called, optimizer, algorithm)
    for step in range(_STEPS):
        optimizer.zero_grad()
        backward(here, called, step)
        optimizer.step()
    assert comm.stats()["elements"] > 0
    comm.detach()
    return [each.detach().clone() for each in model.parameters()]


def _compiles_once(here: Here, wrap: _Wrap, algorithm: Any) -> int:
    """How many graphs it has compiled. Its weights have the bits of a model that is not compiled."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    plain, model = (wrap(here, _Net()) for _ in range(2))
    compiled = _trained(here, model, torch.compile(model, backend=backend), algorithm)
    for one, other in zip(_trained(here, plain, plain, algorithm), compiled, strict=True):
        assert torch.equal(one, other)
    return len(graphs)


@pytest.mark.parametrize("algorithm", ["bytegrad", Decentralized(), DiLoCo(steps=2)], ids=repr)
def test_a_compiled_ddp_has_one_graph_and_the_bits_of_a_plain_one(two: Ranks, algorithm: Any) -> None:
    assert two.run(_compiles_once, _in_ddp, algorithm) == [1, 1]


def test_a_compiled_fully_shard_has_the_bits_of_a_plain_one(two: Ranks) -> None:
    two.run(_compiles_once, _sharded, "bytegrad")
