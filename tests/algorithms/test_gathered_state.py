# SPDX-License-Identifier: MIT
"""The states of all ranks in one checkpoint."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, ByteGrad, GatheredState, attach
from tests.algorithms.apart import Apart
from tests.algorithms.models import WIDTH, attached, backward, inside, net
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
RATE = 0.05


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE, momentum=0.9)


def _steps(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> dict[str, torch.Tensor]:
    for step in steps:
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    return {name: each.detach().clone() for name, each in inside(model).named_parameters()}


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def _sharded(here: Here) -> str:
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))
    model = fully_shard(net(), mesh=mesh)
    comm = attach(model, _sgd(model), "bytegrad")
    refused = refusal(lambda: GatheredState(comm))
    comm.detach()
    return refused


def test_shards_are_refused_in_a_line_that_says_what_to_do(two: Ranks) -> None:
    for refused in two.run(_sharded):
        assert refused.startswith("ValueError")
        assert "comm.state_dict()" in refused
        assert "\n" not in refused


def _made(here: Here, backend: str, algorithm: Any) -> tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]:
    """DDP keeps its first buckets with find_unused_parameters, so that a resumed run has the same."""
    module = net()
    optimizer = _sgd(module)
    model, comm = attached(here, backend, module, optimizer, algorithm, find_unused_parameters=True)
    return model, optimizer, comm


def _saved_by_rank_0(here: Here, state: Any) -> Any:
    """What every rank reads of what rank 0 wrote."""
    if here.rank == 0:
        stream = io.BytesIO()
        torch.save(state, stream)
        here.board.set("checkpoint", stream.getvalue())
    else:
        assert state["algorithm"] == {}
    return torch.load(io.BytesIO(here.board.get("checkpoint")), weights_only=True)


def _resumes(here: Here, backend: str, algorithm: Any) -> None:
    """The weights and the optimizer are those of rank 0, as frameworks save them."""
    model, optimizer, comm = _made(here, backend, algorithm)
    _steps(here, model, optimizer, range(3))
    state = {"weights": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    state["algorithm"] = GatheredState(comm).state_dict()
    saved = _saved_by_rank_0(here, state)
    whole = _steps(here, model, optimizer, range(3, 6))
    model, optimizer, comm = _made(here, backend, algorithm)
    model.module.load_state_dict(saved["weights"])
    optimizer.load_state_dict(saved["optimizer"])
    GatheredState(comm).load_state_dict(saved["algorithm"])
    assert _equal(_steps(here, model, optimizer, range(3, 6)), whole)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", [ByteGrad(bits=4, block=32), Apart()], ids=["gradients", "weights"])
def test_ranks_resume_from_one_checkpoint(ranks: Ranks, algorithm: Any, backend: str) -> None:
    ranks.run(_resumes, backend, algorithm)


class _Grows(nn.Module):  # type: ignore[misc]
    """Each rank has its own number of experts, which DDP ignores; a table that has grown is in no checkpoint."""

    def __init__(self, rank: int, rows: int) -> None:
        super().__init__()
        self.common = net()
        self.experts = nn.Linear(WIDTH, 1 + rank)
        self.register_buffer("table", torch.zeros(rows), persistent=False)
        self.register_buffer("count", torch.zeros(1))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, ["experts.weight", "experts.bias"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.common(x)


def _loads_its_own(here: Here) -> None:
    def made(rows: int) -> tuple[_Grows, AlgorithmHandle]:
        module = _Grows(here.rank, rows)
        _, comm = attached(here, "gloo", module, _sgd(module), Apart())
        return module, comm

    module, comm = made(9)
    with torch.no_grad():
        module.experts.weight.fill_(5 + here.rank)
        module.count += 5
    saved = _saved_by_rank_0(here, {"algorithm": GatheredState(comm).state_dict()})["algorithm"]
    module, comm = made(2)
    GatheredState(comm).load_state_dict(saved)
    assert bool((module.experts.weight == 5 + here.rank).all())
    assert module.count.item() == 5
    assert module.table.numel() == 2


def test_a_rank_compares_what_it_loads(two: Ranks) -> None:
    two.run(_loads_its_own)


def _loads_another(here: Here, change: str) -> str:
    _, _, comm = _made(here, "bagua_net", "bytegrad")
    state = GatheredState(comm).state_dict()
    if here.rank == 0 and change == "ranks":
        state["ranks"] *= 2
    saved = _saved_by_rank_0(here, {"algorithm": state})["algorithm"]
    if change == "algorithm":
        _, _, comm = _made(here, "bagua_net", "allreduce")
    return refusal(partial(GatheredState(comm).load_state_dict, saved))


@pytest.mark.parametrize(
    ("change", "words"), [("ranks", "of 4 ranks, and here are 2"), ("algorithm", "'bytegrad', and here 'allreduce'")]
)
def test_a_state_that_does_not_fit_is_refused(two: Ranks, change: str, words: str) -> None:
    for refused in two.run(_loads_another, change):
        assert words in refused
        assert "begin without the state" in refused
