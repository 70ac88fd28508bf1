# SPDX-License-Identifier: MIT
"""Communication hooks that a model has already, and compiled autograd, which would trace ours: refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bagua_net.algorithms import AlgorithmHandle, attach
from tests.algorithms.models import ddp, net
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _attached(model: nn.Module, **arguments: Any) -> AlgorithmHandle:
    return attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "bytegrad", **arguments)


def _sharded(here: Here, **arguments: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))
    return fully_shard(net(), mesh=mesh, **arguments)


# ---- second hooks ----


def _of_cpp(here: Here) -> str:
    model = ddp(here, "gloo")
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return refusal(lambda: _attached(model))


class _Scatters:
    """A reduce-scatter of somebody else's."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output: Any, x: Any, group: Any, op: Any, async_op: bool = False) -> Any:
        return dist.reduce_scatter_tensor(output, x, op, group, async_op)


def _of_shards(here: Here) -> str:
    model = _sharded(here)
    model.set_custom_reduce_scatter(_Scatters())
    return refusal(lambda: _attached(model))


def _hook(shard: torch.Tensor) -> None:
    """Between replicas."""


def _of_replicas(here: Here) -> str:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(net(), mesh=mesh["shard"])
    model.set_all_reduce_hook(_hook)
    return refusal(lambda: _attached(model, replicate=mesh["replicate"]))


@pytest.mark.parametrize(("what", "word"), [(_of_cpp, "ALLREDUCE"), (_of_shards, "_Scatters"), (_of_replicas, "_hook")])
def test_a_hook_of_somebody_else_is_named(two: Ranks, what: Callable[[Here], str], word: str) -> None:
    for refused in two.run(what):
        assert "ValueError" in refused, refused
        assert word in refused, refused


def _after_detach(here: Here) -> None:
    """What FSDP2 keeps of ours is no hook of somebody else."""
    model = _sharded(here)
    _attached(model).detach()
    _attached(model).detach()


def test_a_sharded_model_may_be_attached_again(two: Ranks) -> None:
    two.run(_after_detach)


# ---- what is not sharded as a whole ----


def _ignored(here: Here) -> str:
    model = net()
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))
    fully_shard(model, mesh=mesh, ignored_params={model[0].weight})
    return refusal(lambda: _attached(model))


def _within(here: Here) -> str:
    model = net()
    fully_shard(model[0], mesh=init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",)))
    return refusal(lambda: _attached(model))


def _shards_as_replicas(here: Here) -> str:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    return refusal(lambda: _attached(fully_shard(net(), mesh=mesh["shard"]), replicate=mesh["shard"]))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_ignored, ["0.weight", "ignored_params"]),
        (_within, ["Sequential", "whole model"]),
        (_shards_as_replicas, ["replicate is of the ranks [0, 1]", "other dimension"]),
    ],
)
def test_parts_that_would_not_be_averaged_rightly_are_named(
    two: Ranks, what: Callable[[Here], str], words: list[str]
) -> None:
    for refused in two.run(what):
        assert all(word in refused for word in ["ValueError", *words]), refused


# ---- compiled autograd ----


def _compiles(here: Here, is_sharded: bool) -> str:
    from torch._dynamo import config

    model = _sharded(here) if is_sharded else ddp(here, "gloo")
    with config.patch(compiled_autograd=True):
        return refusal(lambda: _attached(model))


@pytest.mark.parametrize("is_sharded", [False, True])
def test_compiled_autograd_is_refused(two: Ranks, is_sharded: bool) -> None:
    for refused in two.run(_compiles, is_sharded):
        assert "torch._dynamo.config.compiled_autograd = False" in refused, refused
