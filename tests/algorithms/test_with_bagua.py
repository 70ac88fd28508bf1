# SPDX-License-Identifier: MIT
"""with_bagua, and the states of all ranks in one checkpoint."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import ALGORITHMS, ByteGrad, StateOfAllRanks, attach, with_bagua
from tests.algorithms.apart import Apart
from tests.algorithms.models import WIDTH, backward, ddp, group_of, inside, net, same_on_all_ranks
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


# ---- with_bagua ----


def _is_ddp_and_attach(here: Here, backend: str) -> None:
    module = net()
    optimizer = _sgd(module)
    model = with_bagua(module, [optimizer], "bytegrad", group_of(here, backend), bucket_cap_mb=0.002)
    assert model.bagua.algorithm == ByteGrad()
    got = _steps(here, model, optimizer, range(4))
    plain = ddp(here, backend)
    other = _sgd(plain)
    attach(plain, other, "bytegrad")
    assert _equal(got, _steps(here, plain, other, range(4)))
    assert same_on_all_ranks(here, got)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None, "its attribute keeps the model alive"


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_bagua_is_ddp_and_attach(two: Ranks, backend: str) -> None:
    two.run(_is_ddp_and_attach, backend)


def _with_buffers(here: Here) -> nn.Module:
    torch.manual_seed(here.rank)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))


def _keeps_buffers(here: Here) -> None:
    """Equal at the beginning, and then each rank's own."""
    module = _with_buffers(here)
    optimizer = _sgd(module)
    model = with_bagua(module, optimizer, Apart())
    assert same_on_all_ranks(here, dict(module.named_parameters()))
    _steps(here, model, optimizer, range(2))
    model.eval()
    model(torch.zeros(2, WIDTH))
    assert not same_on_all_ranks(here, {"mean": module[1].running_mean})


def test_ranks_that_train_apart_keep_their_buffers(two: Ranks) -> None:
    two.run(_keeps_buffers)


def _refuses_to_send_buffers(here: Here, name: str) -> bool:
    """Whether the algorithm says so."""
    module = _with_buffers(here)
    model = nn.parallel.DistributedDataParallel(module)
    said = refusal(lambda: attach(model, _sgd(module), ALGORITHMS[name]()).detach())
    return "broadcast_buffers" in said or "forward_sync_buffers" in said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_that_average_weights_are_declared(two: Ranks, name: str) -> None:
    averages_weights = ALGORITHMS[name]().averages == "weights"
    assert two.run(_refuses_to_send_buffers, name) == [averages_weights] * 2


def _several(here: Here) -> str:
    module = net()
    halves = [torch.optim.SGD(module[:3].parameters(), RATE), torch.optim.SGD(module[3:].parameters(), RATE)]
    with_bagua(module, halves, "bytegrad").bagua.detach()
    return refusal(lambda: with_bagua(net(), halves, Apart()))


def _none(here: Here) -> str:
    return refusal(lambda: with_bagua(net(), [], "bytegrad"))


def _sharded(here: Here) -> str:
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))
    model = fully_shard(net(), mesh=mesh)
    comm = attach(model, _sgd(model), "bytegrad")
    refused = refusal(lambda: StateOfAllRanks(comm))
    comm.detach()
    return refused


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_several, ["ValueError", "apart works with one optimizer, not with 2"]),
        (_none, ["ValueError", "no optimizer"]),
        (_sharded, ["ValueError", "comm.state_dict()"]),
    ],
)
def test_what_is_refused_is_refused_in_a_line_that_says_what_to_do(
    two: Ranks, what: Callable[[Here], str], words: list[str]
) -> None:
    for refused in two.run(what):
        assert "\n" not in refused
        assert all(word in refused for word in words), refused


# ---- states of all ranks ----


def _made(here: Here, backend: str, algorithm: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """DDP keeps its first buckets with find_unused_parameters, so that a resumed run has the same."""
    module = net()
    optimizer = _sgd(module)
    group = group_of(here, backend)
    return with_bagua(module, optimizer, algorithm, group, find_unused_parameters=True), optimizer


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
    model, optimizer = _made(here, backend, algorithm)
    _steps(here, model, optimizer, range(3))
    state = {"weights": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    state["algorithm"] = StateOfAllRanks(model.bagua).state_dict()
    saved = _saved_by_rank_0(here, state)
    whole = _steps(here, model, optimizer, range(3, 6))
    model, optimizer = _made(here, backend, algorithm)
    model.module.load_state_dict(saved["weights"])
    optimizer.load_state_dict(saved["optimizer"])
    StateOfAllRanks(model.bagua).load_state_dict(saved["algorithm"])
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
    def made(rows: int) -> tuple[_Grows, Any]:
        module = _Grows(here.rank, rows)
        return module, with_bagua(module, _sgd(module), Apart(), here.gloo)

    module, model = made(9)
    with torch.no_grad():
        module.experts.weight.fill_(5 + here.rank)
        module.count += 5
    saved = _saved_by_rank_0(here, {"algorithm": StateOfAllRanks(model.bagua).state_dict()})["algorithm"]
    module, model = made(2)
    StateOfAllRanks(model.bagua).load_state_dict(saved)
    assert bool((module.experts.weight == 5 + here.rank).all())
    assert module.count.item() == 5
    assert module.table.numel() == 2


def test_a_rank_compares_what_it_loads(two: Ranks) -> None:
    two.run(_loads_its_own)


def _loads_another(here: Here, change: str) -> str:
    model, _ = _made(here, "bagua_net", "bytegrad")
    state = StateOfAllRanks(model.bagua).state_dict()
    if here.rank == 0 and change == "ranks":
        state["ranks"] *= 2
    saved = _saved_by_rank_0(here, {"algorithm": state})["algorithm"]
    if change == "algorithm":
        model, _ = _made(here, "bagua_net", "allreduce")
    return refusal(partial(StateOfAllRanks(model.bagua).load_state_dict, saved))


@pytest.mark.parametrize(
    ("change", "words"), [("ranks", "of 4 ranks, and here are 2"), ("algorithm", "'bytegrad', and here 'allreduce'")]
)
def test_a_state_that_does_not_fit_is_refused(two: Ranks, change: str, words: str) -> None:
    for refused in two.run(_loads_another, change):
        assert words in refused
        assert "begin without the state" in refused
