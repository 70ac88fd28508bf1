# SPDX-License-Identifier: MIT
"""A GradScaler that steps an attached model's optimizer, and that attach was not given: noticed where it does harm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from bagua_net.algorithms import (
    Algorithm,
    AsyncModelAverage,
    Auto,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GradientAllReduce,
    LowPrecisionDecentralized,
    QAdam,
    QAdamOptimizer,
    attach,
)
from bagua_net.algorithms.ddp_comm_hooks import ByteGradState, bytegrad_hook
from tests.algorithms.models import batch, ddp, net
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _scaler(**arguments: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, **arguments)


def _steps(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, steps: int = 2) -> None:
    for step in range(steps):
        x, y = batch(here, step)
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


def _made(here: Here, algorithm: Algorithm, **arguments: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    if isinstance(algorithm, QAdam):
        return model, QAdamOptimizer(model.parameters(), warmup_steps=1)
    return model, torch.optim.SGD(model.parameters(), 0.05, **arguments)


def _forgotten(here: Here, algorithm: Algorithm, arguments: dict[str, Any], known: bool) -> str:
    model, optimizer = _made(here, algorithm, **arguments)
    comm = attach(model, optimizer, algorithm, scaler=_scaler() if known else None)
    before = [each.detach().clone() for each in model.parameters()]
    said = refusal(lambda: _steps(here, model, optimizer, _scaler()))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    comm.detach(synchronize=False)
    return said


@pytest.mark.parametrize(
    ("algorithm", "arguments", "known", "words"),
    [
        (ByteGrad(), {}, False, "scaler=scaler"),
        (ByteGrad(), {"fused": True}, False, "scaler=scaler"),
        (ByteGrad(), {}, True, "scaler=scaler"),
        (Auto(), {}, False, "scaler=scaler"),
        (QAdam(), {}, False, "bfloat16"),
        (DiLoCo(steps=2), {}, False, "bfloat16"),
        (Decentralized(), {}, False, "bfloat16"),
        (LowPrecisionDecentralized(), {}, False, "bfloat16"),
        (AsyncModelAverage(), {}, False, "bfloat16"),
    ],
    ids=["bytegrad", "fused", "another", "auto", "qadam", "diloco", "decentralized", "low-precision", "async"],
)
def test_a_scaler_that_was_not_passed_is_refused_before_it_steps(
    two: Ranks, algorithm: Algorithm, arguments: dict[str, Any], known: bool, words: str
) -> None:
    for said in two.run(_forgotten, algorithm, arguments, known):
        assert said.startswith("RuntimeError: bagua_net.algorithms: "), said
        assert "GradScaler" in said
        assert words in said
        assert "\n" not in said


def _with_replicas(here: Here) -> str:
    """FSDP's own class of scalers, and residuals between replicas."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(net(), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    comm = attach(model, optimizer, "bytegrad", replicate=mesh["replicate"])
    scaler = ShardedGradScaler("cpu", init_scale=64.0, process_group=mesh["shard"].get_group())
    said = refusal(lambda: _steps(here, model, optimizer, scaler))
    comm.detach()
    return said


def _of_a_hook(here: Here) -> str:
    model, optimizer = _made(here, ByteGrad())
    model.register_comm_hook(ByteGradState(), bytegrad_hook)
    return refusal(lambda: _steps(here, model, optimizer, _scaler()))


def test_residuals_between_replicas_follow_a_scaler_as_well(two: Ranks) -> None:
    for said in two.run(_with_replicas):
        assert "attach(model, optimizer, algorithm, scaler=scaler)" in said, said


def test_residuals_of_a_plain_hook_follow_a_scaler_as_well(two: Ranks) -> None:
    for said in two.run(_of_a_hook):
        assert "ByteGradState(scaler=scaler)" in said, said


def _no_harm(here: Here) -> None:
    for algorithm in (GradientAllReduce(), ByteGrad(error_feedback=False)):  # which keep nothing of scaled gradients
        model, optimizer = _made(here, algorithm)
        comm = attach(model, optimizer, algorithm)
        _steps(here, model, optimizer, _scaler())
        comm.detach()
    model, optimizer = _made(here, ByteGrad())
    comm = attach(model, optimizer, "bytegrad")
    _steps(here, model, optimizer, _scaler(enabled=False))
    other, others = _made(here, ByteGrad())
    _steps(here, other, others, _scaler())  # of a model without an algorithm
    comm.detach()
    _steps(here, model, optimizer, _scaler())
    scaler = _scaler()
    with_it = attach(model, optimizer, "bytegrad", scaler=scaler)
    _steps(here, model, optimizer, scaler)
    with_it.detach()
    averaged = attach(model, optimizer, Decentralized())
    averaged.pause()
    _steps(here, model, optimizer, _scaler())
    averaged.detach()


def test_a_scaler_that_does_no_harm_is_left_alone(two: Ranks) -> None:
    two.run(_no_harm)
