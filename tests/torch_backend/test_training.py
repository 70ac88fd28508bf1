# SPDX-License-Identifier: MIT
"""Training over a group: DDP and its hooks, FSDP2, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.device_mesh
import torch.distributed.fsdp

from tests.support.ranks import Ranks
from tests.torch_backend.cases import values

if TYPE_CHECKING:
    from tests.support.rank import Here


# ---- DDP ----


def data_parallel(here: Here, backend: str) -> list[float]:
    """Three steps of a small model; its losses."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 1))
    group = here.gloo if backend == "gloo" else None
    model = torch.nn.parallel.DistributedDataParallel(layers, process_group=group, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        data = values(torch.float32, (16, 20), 10 * step + here.rank)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_data_parallel_training_as_with_gloo(ranks: Ranks) -> None:
    ours, theirs = ranks.run(data_parallel, "bagua_net"), ranks.run(data_parallel, "gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)


def power_sgd(here: Here) -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.01)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(5):
        model.zero_grad()
        model(values(torch.float32, (8, 64), 10 * step + here.rank)).square().mean().backward()
    gathered = [torch.empty(64, 64) for _ in range(here.size)]
    dist.all_gather(gathered, model.module.weight.grad)
    return [float((tensor - gathered[0]).abs().max()) for tensor in gathered]


def test_a_hook_that_waits_in_its_callbacks(ranks: Ranks) -> None:
    """All ranks end with the same gradients."""
    assert ranks.run(power_sgd, seconds=60) == [[0.0] * ranks.size] * ranks.size


def built_in_hook(here: Here, name: str) -> str:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, name))
    try:
        model(torch.full((4,), float(here.rank))).sum().backward()
    except RuntimeError as error:
        return str(error)
    wanted = torch.full((4, 4), sum(range(here.size)) / here.size)
    torch.testing.assert_close(model.module.weight.grad, wanted)
    return ""


@pytest.mark.parametrize("name", ["ALLREDUCE", "FP16_COMPRESS"])
def test_a_hook_that_ddp_has_built_in(ranks: Ranks, name: str) -> None:
    """The second hook needs a C++ interface that a group in Python lacks, and fails; the group stays usable."""
    for told in ranks.run(built_in_hook, name):
        assert not told or (name == "FP16_COMPRESS" and "should return TensorList" in told)
    ranks.run(fully_sharded)


# ---- FSDP2 and checkpoints ----


def saved_meanwhile(here: Here, directory: str) -> None:
    """A thread of torch saves, with this group's collectives."""
    checkpoint = torch.distributed.checkpoint
    everyone = {f"of {rank}": torch.full((1000,), float(rank)) for rank in range(here.size)}
    name = f"of {here.rank}"
    checkpoint.async_save({name: everyone[name]}, checkpoint_id=directory).result()
    loaded = {name: torch.zeros(1000) for name in everyone}
    checkpoint.load(loaded, checkpoint_id=directory)
    for key, tensor in everyone.items():
        assert loaded[key].tolist() == tensor.tolist()


def test_a_checkpoint_that_is_saved_meanwhile(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(saved_meanwhile, str(tmp_path))


def fully_sharded(here: Here) -> None:
    """FSDP2 asks the group for communication memory; it gets ordinary host memory."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (here.size,))
    model = torch.nn.Linear(30, 10)
    torch.nn.init.ones_(model.weight)
    model = torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    model.set_allocate_memory_from_process_group_for_comm(True)
    model(torch.full((2, 30), float(here.rank))).sum().backward()
    mean = sum(2.0 * rank for rank in range(here.size)) / here.size
    torch.testing.assert_close(model.weight.grad.full_tensor(), torch.full((10, 30), mean))


def test_fully_sharded_training(ranks: Ranks) -> None:
    ranks.run(fully_sharded)


def _trained(model: torch.nn.Module, seeds: Callable[[int], list[int]]) -> list[torch.Tensor]:
    """seeds: of a step's batches, whose mean loss it is."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        losses = [model(values(torch.float32, (8, 20), seed)).square().mean() for seed in seeds(step)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def _three_layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))


def offloaded(here: Here) -> None:
    """Parameters that live on the CPU are gathered, trained and stored there as by one process with all batches."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (here.size,))
    model = _three_layers()
    policy = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=False)
    for layer in (model[0], model[2], model):
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh, offload_policy=policy)
    sharded: list[Any] = _trained(model, lambda step: [10 * step + here.rank])
    whole = _trained(_three_layers(), lambda step: [10 * step + rank for rank in range(here.size)])
    assert {each.device.type for each in sharded} == {"cpu"}
    torch.testing.assert_close([each.full_tensor() for each in sharded], [each.detach() for each in whole])


def test_fully_sharded_training_with_offloaded_parameters(ranks: Ranks) -> None:
    ranks.run(offloaded)
