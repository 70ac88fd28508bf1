# SPDX-License-Identifier: MIT
"""What attach refuses, whatever the algorithm: on all ranks, also where they differ or only one of them refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer, _apply_optimizer_in_backward

from bagua_net.algorithms import AlgorithmHandle, ByteGrad, GradientAllReduce, QAdamOptimizer, attach
from bagua_net.algorithms._registry import ALGORITHMS
from tests.algorithms.models import WIDTH, backward, ddp, gradients, net, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _attached(model: nn.Module, algorithm: Any = "bytegrad", **arguments: Any) -> AlgorithmHandle:
    return attach(model, torch.optim.SGD(model.parameters(), lr=0.05), algorithm, **arguments)


# ---- what is refused ----


def _sparse(here: Here) -> str:
    model = nn.Sequential(nn.Embedding(10, WIDTH, sparse=True), nn.Linear(WIDTH, 2))
    return refusal(lambda: _attached(ddp(here, "bagua_net", model)))


def _complex(here: Here) -> str:
    model = nn.Linear(3, 3).to(torch.complex64)
    return refusal(lambda: _attached(ddp(here, "bagua_net", model)))


def _plain_module(here: Here) -> str:
    return refusal(lambda: _attached(net()))


def _second_hook(here: Here) -> str:
    model = ddp(here, "bagua_net")
    model.register_comm_hook(None, allreduce_hook)
    return refusal(lambda: _attached(model))


def _skips_buckets(here: Here) -> str:
    model = ddp(here, "bagua_net", find_unused_parameters=True, skip_all_reduce_unused_params=True)
    return refusal(lambda: _attached(model))


def _steps_in_backward(here: Here) -> str:
    module = net()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05})
    return refusal(lambda: _attached(ddp(here, "bagua_net", module)))


def _second_algorithm(here: Here) -> str:
    model = ddp(here, "bagua_net")
    comm = _attached(model)
    refused = refusal(lambda: _attached(model))
    comm.detach()
    _attached(model).detach()
    return refused


def _unknown_name(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), "bitegrad"))


def _class_of_settings(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), ByteGrad))


def _other_order(here: Here) -> str:
    model = ddp(here, "bagua_net")
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    return refusal(lambda: attach(optimizer, model, "bytegrad"))


def _redundant(here: Here) -> str:
    model = ddp(here, "bagua_net")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05)
    return refusal(lambda: attach(model, optimizer, "diloco"))


def _averages_itself(here: Here) -> str:
    model = ddp(here, "bagua_net")
    inside = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = PostLocalSGDOptimizer(inside, PeriodicModelAverager(period=2))
    return refusal(lambda: attach(model, optimizer, "decentralized"))


def _bad_bits(here: Here) -> str:
    return refusal(lambda: ByteGrad(bits=5))


def _bad_block(here: Here) -> str:
    return refusal(lambda: ByteGrad(block=100))


def _no_nodes(here: Here) -> str:
    model = ddp(here, "bagua_net")
    return refusal(lambda: _attached(model, GradientAllReduce(hierarchical=True, ranks_per_node=5)))


def _after_detach(here: Here) -> str:
    comm = _attached(ddp(here, "bagua_net"))
    comm.detach()
    comm.detach()
    return refusal(comm.stats)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_sparse, ["ValueError", "sparse=False"]),
        (_complex, ["ValueError", "weight is complex", "view_as_real"]),
        (_plain_module, ["ValueError", "DistributedDataParallel(model)"]),
        (_second_hook, ["ValueError", "allreduce_hook"]),
        (_skips_buckets, ["ValueError", "skip_all_reduce_unused_params=True", "leave it out"]),
        (_steps_in_backward, ["ValueError", "_apply_optimizer_in_backward", "step after"]),
        (_second_algorithm, ["ValueError", "detach it first"]),
        (_unknown_name, ["ValueError", "'bitegrad'", "bytegrad"]),
        (_class_of_settings, ["TypeError", "such as ByteGrad()", "this is the class ByteGrad"]),
        (_other_order, ["TypeError", "attach(model, optimizer, algorithm)", "of type SGD"]),
        (_redundant, ["ValueError", "ZeroRedundancyOptimizer sends weights", "use the optimizer that it was made of"]),
        (_averages_itself, ["ValueError", "PostLocalSGDOptimizer sends weights"]),
        (_bad_bits, ["ValueError", "5"]),
        (_bad_block, ["ValueError", "100"]),
        (_no_nodes, ["ValueError", "nodes of 5", "ranks_per_node"]),
        (_after_detach, ["RuntimeError", "detached"]),
    ],
)
def test_what_is_refused_is_refused_in_a_line_that_says_what_to_do(
    two: Ranks, what: Callable[[Here], str], words: list[str]
) -> None:
    for refused in two.run(what):
        assert "\n" not in refused
        assert all(word in refused for word in words), refused


# ---- buffers that DDP would send ----


def _refuses_to_send_buffers(here: Here, name: str) -> bool:
    """Whether the algorithm says so."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8)))
    said = refusal(lambda: _attached(model, ALGORITHMS[name]()).detach())
    return "broadcast_buffers" in said or "forward_sync_buffers" in said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_that_average_weights_are_declared(two: Ranks, name: str) -> None:
    averages_weights = ALGORITHMS[name]().averages == "weights"
    assert two.run(_refuses_to_send_buffers, name) == [averages_weights] * 2


# ---- agreement ----


def _differing_settings(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), ByteGrad(block=64 if here.rank == 1 else 512)))


def _differing_algorithms(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), "allreduce" if here.rank == 1 else "bytegrad"))


def _differing_scalers(here: Here) -> str:
    scaler = torch.amp.GradScaler("cpu") if here.rank == 1 else None
    return refusal(lambda: _attached(ddp(here, "bagua_net"), scaler=scaler))


def _differing_names(here: Here) -> str:
    """DDP compares shapes only."""
    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
    model = nn.ModuleDict(layers if here.rank == 0 else {"c": layers["a"], "d": layers["b"]})
    return refusal(lambda: _attached(ddp(here, "bagua_net", model)))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_differing_settings, ["block: 512 on rank 0, 64 on rank 1"]),
        (_differing_algorithms, ["algorithm: 'bytegrad' on rank 0, 'allreduce' on rank 1"]),
        (_differing_scalers, ["scaler: 'none' on rank 0, 'a GradScaler' on rank 1"]),
        (_differing_names, ["names, shapes and types"]),
    ],
)
def test_ranks_that_differ_are_named_on_all_ranks(two: Ranks, what: Callable[[Here], str], words: list[str]) -> None:
    for refused in two.run(what):
        assert all(word in refused for word in words), refused


# ---- one rank refuses ----


def _one_sparse(here: Here) -> str:
    model = nn.Sequential(nn.Embedding(10, WIDTH, sparse=here.rank == 1), nn.Linear(WIDTH, 2))
    return refusal(lambda: _attached(ddp(here, "bagua_net", model)))


def _one_hook(here: Here) -> str:
    model = ddp(here, "bagua_net")
    if here.rank == 1:
        model.register_comm_hook(None, allreduce_hook)
    refused = refusal(lambda: _attached(model))
    if here.rank == 0:
        model.register_comm_hook(None, allreduce_hook)  # attach has left the model as it was
    backward(here, model, 0)
    assert same_on_all_ranks(here, gradients(model))
    return refused


def _one_name(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), "bytegrad" if here.rank == 0 else "bitegrad"))


def _one_not_detached(here: Here) -> str:
    model = ddp(here, "bagua_net")
    comm = _attached(model)
    if here.rank == 0:
        comm.detach()
    refused = refusal(lambda: _attached(model))
    comm.detach()
    return refused


def _one_optimizer(here: Here) -> str:
    model = ddp(here, "bagua_net")
    optimizer = QAdamOptimizer if here.rank == 0 else torch.optim.Adam
    return refusal(lambda: attach(model, optimizer(model.parameters(), 0.01), "qadam"))


def _one_without_optimizer(here: Here) -> str:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05) if here.rank == 0 else list(model.parameters())
    return refusal(lambda: attach(model, optimizer, "diloco"))


@pytest.mark.parametrize("name", ["diloco", "decentralized", "low_precision_decentralized", "async"])
def test_what_one_rank_alone_cannot_train_apart_is_refused_by_all(two: Ranks, name: str) -> None:
    others, own = two.run(_one_sends_buffers, name)
    _is_told(others, own, "broadcast_buffers=False")


def _is_told(others: str, own: str, words: str) -> None:
    """own: what rank 1 raised; others: what rank 0 did."""
    assert words in own, own
    assert "rank 1 refuses" not in own
    assert others.startswith("ValueError: bagua_net.algorithms: attach: rank 1 refuses: "), others
    assert words in others, others
    assert "\n" not in others


class _Wrapper(torch.optim.Optimizer):  # type: ignore[misc]
    """As accelerate's: it has the user's optimizer, and takes no hooks."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def _wrapped_optimizer(here: Here, algorithm: str) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(model, _Wrapper(optimizer) if here.rank == 1 else optimizer, algorithm)
    assert comm._context.optimizer is optimizer
    comm.detach()


@pytest.mark.parametrize("name", ["diloco", "decentralized"])
def test_the_optimizer_inside_of_a_wrapper_is_the_one_that_counts(two: Ranks, name: str) -> None:
    two.run(_wrapped_optimizer, name)


def _one_of_a_mesh(here: Here) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(net(), mesh=mesh["shard"])
    name = "bitegrad" if here.rank == 3 else "bytegrad"
    return refusal(lambda: _attached(model, name, replicate=mesh["replicate"]))


@pytest.mark.gate
def test_what_one_rank_of_a_mesh_refuses_reaches_those_that_share_no_group_with_it(four: Ranks) -> None:
    *others, own = four.run(_one_of_a_mesh)
    assert "'bitegrad'" in own
    assert all("attach: rank 3 refuses: there is no algorithm 'bitegrad'" in each for each in others), others


def _one_sends_buffers(here: Here, algorithm: str) -> str:
    model = ddp(here, "bagua_net", nn.Sequential(net(), nn.BatchNorm1d(5)), broadcast_buffers=False)
    if here.rank == 1:
        vars(model)[next(each for each in ("forward_sync_buffers", "broadcast_buffers") if each in vars(model))] = True
    return refusal(lambda: _attached(model, algorithm))


def _has_no_buffers(here: Here, algorithm: str) -> None:
    """DDP's default sends none then. A training step shows that no rank waits for another one's."""
    model = ddp(here, "bagua_net")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(model, optimizer, algorithm)
    backward(here, model, 0)
    optimizer.step()
    comm.detach()


@pytest.mark.parametrize("name", ["diloco", "decentralized", "low_precision_decentralized", "async"])
def test_a_model_without_buffers_needs_no_setting(two: Ranks, name: str) -> None:
    two.run(_has_no_buffers, name)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_one_sparse, "sparse=False"),
        (_one_hook, "allreduce_hook"),
        (_one_name, "'bitegrad'"),
        (_one_not_detached, "detach it first"),
        (_one_optimizer, "QAdamOptimizer(model.parameters(), lr=1e-3, warmup_steps=N)"),
        (_one_without_optimizer, "of type list, which is no torch.optim.Optimizer"),
    ],
)
def test_what_one_rank_refuses_is_refused_by_all_and_the_others_name_it(
    two: Ranks, what: Callable[[Here], str], words: str
) -> None:
    others, own = two.run(what)
    _is_told(others, own, words)


def _one_attaches(here: Here) -> str:
    """The other rank goes on to train."""
    model = ddp(here, "bagua_net")
    if here.rank == 0:
        return refusal(lambda: _attached(model, "bytegrad"))
    return refusal(lambda: backward(here, model, 0))


@pytest.mark.nightly
def test_a_rank_that_does_not_attach_is_not_waited_for() -> None:
    with Ranks(2) as ranks:
        said, _ = ranks.run(_one_attaches)
    assert "attach: the ranks could not compare their settings" in said
    assert "every rank of the model calls attach, before its first step" in said
