# SPDX-License-Identifier: MIT
"""ByteGrad with fully_shard (FSDP2): its reduce-scatter, and the average between replicas."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from bagua_net.algorithms import AlgorithmHandle, ByteGrad, attach
from bagua_net.algorithms import _sharded as module_of_shards
from tests.algorithms.inside import cannot_begin
from tests.algorithms.models import WIDTH, backward, batch, exact_gradients, group_of, mean_of, net
from tests.support.pool import Pool
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _sharded(mesh: DeviceMesh) -> nn.Module:
    model = net()
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _whole_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.full_tensor() for name, each in model.named_parameters()}


def _attached(model: nn.Module, algorithm: Any, **arguments: Any) -> AlgorithmHandle:
    return attach(model, torch.optim.SGD(model.parameters(), lr=0.05), algorithm, **arguments)


def _exact(here: Here, model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """The mean over the ranks, of a model that was not trained since it was made."""
    return exact_gradients(here, net(), step)


def _is_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], bits: int) -> None:
    for name, each in want.items():
        if each.dim() == 1:
            assert torch.allclose(got[name], each, rtol=1e-5, atol=1e-7), name
        else:
            assert (got[name] - each).abs().max() <= 12 * each.abs().max() / (2**bits - 1), name
            assert not torch.allclose(got[name], each, rtol=1e-5, atol=1e-7), f"{name} was not compressed"


def _reduce_scatters(here: Here, bits: int, backend: str) -> float:
    """The bytes that it counts in two steps."""
    model = _sharded(DeviceMesh.from_group(group_of(here, backend), "cpu", mesh_dim_names=("shard",)))
    comm = _attached(model, ByteGrad(bits=bits, block=64))
    for step in range(2):
        model.zero_grad()
        backward(here, model, step)
        _is_close(_whole_gradients(model), _exact(here, model, step), bits)
    elements = sum(parameter.numel() for parameter in net().parameters())
    sent = comm.stats()["bytes"]
    assert 0 < sent < 2 * 4 * elements
    comm.pause()
    model.zero_grad()
    backward(here, model, 2)
    got = _whole_gradients(model)
    assert all(torch.allclose(got[n], e, rtol=1e-5, atol=1e-7) for n, e in _exact(here, model, 2).items())
    comm.resume()
    model.zero_grad()
    backward(here, model, 3)
    _is_close(_whole_gradients(model), _exact(here, model, 3), bits)
    comm.detach()
    model.zero_grad()
    backward(here, model, 4)
    got = _whole_gradients(model)
    assert all(torch.allclose(got[n], e, rtol=1e-5, atol=1e-7) for n, e in _exact(here, model, 4).items())
    return sent


@pytest.mark.parametrize("bits", [8, 4])
def test_reduce_scatter_of_codes(ranks: Ranks, bits: int) -> None:
    ranks.run(_reduce_scatters, bits, "bagua_net")


def test_reduce_scatter_of_codes_by_hosts(pool: Pool) -> None:
    """Each rank sends one code of a shard to another host, instead of three."""
    apart, together = (pool.of(4, hosts=hosts).run(_reduce_scatters, 8, "gloo") for hosts in (4, 2))
    assert all(2 * one < other for one, other in zip(together, apart, strict=True))


def _hosts_in_another_order(here: Here, backend: str) -> None:
    """As a launcher numbers ranks that deals them out in turns, there and back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_HOSTID", ("one", "other", "other", "one")[here.rank])
        _reduce_scatters(here, 8, backend)


def test_reduce_scatter_of_codes_where_hosts_have_ranks_of_any_number(pool: Pool) -> None:
    pool.of(4, hosts=4).run(_hosts_in_another_order, "gloo")


def _averages_between_replicas(here: Here) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    comm = _attached(model, ByteGrad(bits=4, block=32), replicate=mesh["replicate"])
    wanted, got = torch.zeros(40, WIDTH).double(), torch.zeros(40, WIDTH).double()
    for step in range(6):
        model.zero_grad()
        backward(here, model, step)
        exact, now = _exact(here, model, step), _whole_gradients(model)
        assert torch.allclose(now["0.bias"], exact["0.bias"], rtol=1e-5, atol=1e-7)
        assert not torch.allclose(now["0.weight"], exact["0.weight"], rtol=1e-5, atol=1e-7)
        wanted += exact["0.weight"]
        got += now["0.weight"]
    # Each rank has the residuals of its shard: rows of the weight, and then the bias's zeros.
    residual = comm.state_dict()["state"]["residuals"]["0"][: 20 * WIDTH].view(20, WIDTH).double()
    whole = torch.zeros_like(wanted)
    whole[mesh["shard"].get_local_rank() * 20 :][:20] = residual
    total = mean_of(here, whole) * 2  # two replicas of each shard
    assert torch.allclose(got + total, wanted, rtol=0, atol=2e-6)
    comm.detach()
    model.zero_grad()
    backward(here, model, 7)
    got = _whole_gradients(model)
    assert all(torch.allclose(got[n], e, rtol=1e-5, atol=1e-7) for n, e in _exact(here, model, 7).items())


def test_average_of_codes_between_replicas_loses_nothing(four: Ranks) -> None:
    four.run(_averages_between_replicas)


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("no such luck")


def _fails_between_replicas(here: Here) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    comm = _attached(model, "bytegrad", replicate=mesh["replicate"])
    comm.pause()  # to the average that is one all-reduce
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", _broken)
        assert "no such luck" in refusal(lambda: backward(here, model, 0))
    comm.detach()
    again = _attached(_sharded(mesh["shard"]), "bytegrad", replicate=mesh["replicate"])
    assert again._context.own is not comm._context.own
    again.detach()


def test_a_group_whose_average_has_failed_is_not_used_again(four: Ranks) -> None:
    four.run(_fails_between_replicas)


def _lets_go(here: Here, replicas: int) -> bool:
    """Whether the optimizer is freed while the model trains on."""
    size = here.size // replicas
    mesh = init_device_mesh("cpu", (replicas, size), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(model, optimizer, "bytegrad", replicate=mesh["replicate"] if replicas > 1 else None)
    backward(here, model, 0)
    comm.detach()
    gone = weakref.ref(optimizer)
    del optimizer, comm
    gc.collect()
    backward(here, model, 1)
    return gone() is None


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_detached_algorithm_keeps_no_optimizer(four: Ranks, replicas: int) -> None:
    assert four.run(_lets_go, replicas) == [True] * 4


def _loads_for_nothing(here: Here) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    comm = _attached(model, ByteGrad(bits=4), replicate=mesh["replicate"])
    backward(here, model, 0)
    saved = comm.state_dict()
    assert saved["state"]["residuals"]
    comm.detach()
    comm = _attached(model, ByteGrad(bits=4, error_feedback=False), replicate=mesh["replicate"])
    comm.load_state_dict(saved)
    assert comm.state_dict()["state"]["residuals"] == {}
    comm.detach()


def test_residuals_that_are_loaded_without_error_feedback_are_not_kept(four: Ranks) -> None:
    four.run(_loads_for_nothing)


class _NoCodes:
    """On a device without memory."""

    def average(self, *_: Any) -> int:
        return 0

    reduce_scatter_average = average


def _devices_of_codes(here: Here, replicas: int) -> list[str]:
    """For which devices the collectives of codes were made, in two steps, and two more calls with gradients of a device
    that is not the parameters', as with CPUOffloadPolicy."""
    devices: list[str] = []
    made: Any = vars(module_of_shards)["compressed"]

    def recorded(group: Any, codec: Any, device: torch.device, hosts: Any) -> Any:
        devices.append(device.type)
        return made(group, codec, device, hosts) if device.type == "cpu" else _NoCodes()

    size = here.size // replicas
    mesh = init_device_mesh("cpu", (replicas, size), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of_shards, "compressed", recorded)
        how = ByteGrad(exact_one_dimensional=False, error_feedback=False)
        comm = _attached(model, how, replicate=mesh["replicate"] if replicas > 1 else None)
        for step in range(2):
            backward(here, model, step)
        for _ in range(2):
            _reduce_elsewhere(model, mesh["shard"].get_group(), replicas > 1)
    comm.detach()
    return devices


def _reduce_elsewhere(model: Any, shards: Any, has_replicas: bool) -> None:
    calls = model._get_fsdp_state()._fsdp_param_group
    own, whole = torch.empty(64, device="meta"), torch.empty(64 * shards.size(), device="meta")
    if has_replicas:
        calls._all_reduce_hook(own)
    else:
        calls._reduce_scatter_comm(own, whole, shards, dist.ReduceOp.AVG)


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_device_that_gradients_are_on_has_its_collectives_for_all_steps(four: Ranks, replicas: int) -> None:
    assert four.run(_devices_of_codes, replicas) == [["cpu", "meta"]] * 4


def _tensors(elements: set[int]) -> int:
    """How many flat ones of these sizes there are in memory."""
    gc.collect()
    flat = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.dim() == 1]
    return sum(each.numel() in elements for each in flat)


def _keeps(here: Here) -> list[str]:
    """What it loads, and nothing after the end. The refusals of states of other shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    backward(here, model, 0)
    comm = _attached(model, ByteGrad(bits=4, block=32), replicate=mesh["replicate"])
    elements = set(comm.state_dict()["state"]["elements"].values())
    before = _tensors(elements)
    refused = _loads(here, model, comm)
    assert _tensors(elements) > before
    comm.detach()
    backward(here, model, 2)
    assert _tensors(elements) == before
    return refused


def _loads(here: Here, model: nn.Module, comm: AlgorithmHandle) -> list[str]:
    backward(here, model, 0)
    saved = comm.state_dict()
    residuals, elements = saved["state"]["residuals"], saved["state"]["elements"]
    assert {name: each.numel() for name, each in residuals.items()} == elements
    comm.load_state_dict({**saved, "state": {**saved["state"], "residuals": {"0": residuals["0"].double()}}})
    loaded = comm.state_dict()["state"]["residuals"]
    assert torch.equal(loaded.pop("0"), residuals["0"])
    assert not any(each.any() for each in loaded.values())
    backward(here, model, 1)
    fewer = {name: each for name, each in elements.items() if name != "0"}
    others = {**elements, "0": elements["0"] // 2}, fewer, {**elements, "none here": 1}
    return [
        refusal(partial(comm.load_state_dict, {**saved, "state": {**saved["state"], "elements": each}}))
        for each in others
    ]


def test_residuals_are_those_of_the_state_and_end_with_the_algorithm(four: Ranks) -> None:
    for refusals in four.run(_keeps):
        for refused, name in zip(refusals, ("0", "0", "none here"), strict=True):
            assert refused.startswith("ValueError")
            assert f"of the module {name!r}" in refused


class _WithPositions(nn.Module):  # type: ignore[misc]
    """Has a parameter of its own beside those of its children. Some are no whole number of shards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.positions = nn.Parameter(torch.randn(8, WIDTH))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.first, self.norm, self.last = nn.Linear(WIDTH, 41), nn.LayerNorm(41), nn.Linear(41, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x * self.scale + self.positions)))


def _keeps_one_dimension(here: Here, replicas: int) -> None:
    mesh = init_device_mesh("cpu", (replicas, here.size // replicas), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(_WithPositions(), mesh=mesh["shard"])
    comm = _attached(model, ByteGrad(bits=4, block=64), replicate=mesh["replicate"] if replicas > 1 else None)
    backward(here, model, 0)
    got, want = _whole_gradients(model), exact_gradients(here, _WithPositions(), 0)
    compressed = {name for name in want if not torch.allclose(got[name], want[name], rtol=1e-5, atol=1e-7)}
    assert compressed == {"positions", "first.weight", "last.weight"}
    comm.detach()


@pytest.mark.parametrize("replicas", [1, 2])
def test_parameters_of_one_dimension_are_exact_beside_those_of_children(four: Ranks, replicas: int) -> None:
    four.run(_keeps_one_dimension, replicas)


def _orders(here: Here) -> None:
    model = fully_shard(_WithPositions(), mesh=init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",)))
    (part,) = module_of_shards.parts_of(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert [names[each] for each in part.parameters][-2:] == ["positions", "scale"]
    assert list(map(id, part.parameters)) == list(map(id, module_of_shards._children_first(model)))


def test_the_order_of_parameters_is_fully_shards(two: Ranks) -> None:
    two.run(_orders)


class _Branches(nn.Module):  # type: ignore[misc]
    """Of which a step may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor, branches: Sequence[str]) -> torch.Tensor:
        return sum(getattr(self, each)(x) for each in branches)


def _takes_one_branch(here: Here) -> None:
    """FSDP2 passes flat gradients of the parameters that have some: of equal size for both branches."""
    mesh = init_device_mesh("cpu", (here.size, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(_Branches(), mesh=mesh["shard"])
    comm = _attached(model, ByteGrad(bits=4, block=32), replicate=mesh["replicate"])
    x, _ = batch(here, 0)
    for branch in ("one", "other"):
        model.zero_grad()
        model(x, [branch]).square().mean().backward()
        assert not comm.state_dict()["state"]["residuals"]
    model.zero_grad()
    model(x, ["one", "other"]).square().mean().backward()
    before = comm.state_dict()["state"]["residuals"]
    model.zero_grad()
    model(x, ["one"]).square().mean().backward()
    after = comm.state_dict()["state"]["residuals"]
    assert before
    assert all(torch.equal(each, after[name]) for name, each in before.items())
    comm.detach()


def test_what_one_branch_has_lost_is_not_added_to_another(two: Ranks) -> None:
    two.run(_takes_one_branch)


# ---- GradScaler ----


def _scales(here: Here) -> None:
    """A gradient that is not finite on one rank makes all ranks skip the step, and the scale change with it."""
    model = _sharded(init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    attach(model, optimizer, "bytegrad", scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        x, y = batch(here, step)
        if step == 2 and here.rank == 1:
            x[0, 0] = float("inf")
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        for name, each in model.named_parameters():
            assert torch.equal(before[name].to_local(), each.to_local()) == (step == 2), name
        assert scaler.get_scale() == (512.0 if step >= 2 else 1024.0)


def test_a_step_that_one_rank_must_skip_is_skipped_by_all(two: Ranks) -> None:
    two.run(_scales)


def _follows(here: Here) -> None:
    """What was lost at one scale comes at another: the sums of unscaled gradients agree."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)  # doubles with each step
    comm = attach(model, optimizer, ByteGrad(bits=4, block=32), replicate=mesh["replicate"], scaler=scaler)
    wanted, got = torch.zeros(40, WIDTH).double(), torch.zeros(40, WIDTH).double()
    for step in range(6):
        wanted += _exact(here, model, step)["0.weight"]
        optimizer.zero_grad()
        x, y = batch(here, step)
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.unscale_(optimizer)
        got += _whole_gradients(model)["0.weight"]
        scaler.step(optimizer)
        scaler.update()
    state = comm.state_dict()["state"]
    kept = state["residuals"]["0"][: wanted.numel()].double().view_as(wanted)
    residual = mean_of(here, kept) / state["scale"]
    assert residual.abs().max() > 1e-5
    assert torch.allclose(got + residual, wanted, rtol=0, atol=1e-6)
    comm.detach()


def test_residuals_follow_the_scale(two: Ranks) -> None:
    two.run(_follows)


def _skips(here: Here) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = _sharded(mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    comm = attach(model, optimizer, ByteGrad(bits=4, block=32), replicate=mesh["replicate"], scaler=scaler)
    for step, explodes in enumerate((1.0, float("inf") if here.rank == 1 else 1e6, 1.0)):
        optimizer.zero_grad()
        x, y = batch(here, step)
        scaler.scale(nn.functional.mse_loss(model(x), y) * explodes).backward()
        scaler.step(optimizer)
        scaler.update()
        kept = comm.state_dict()["state"]["residuals"].values()
        assert any(each.any() for each in kept) == (step != 1)
    comm.detach()


def test_what_a_skipped_step_has_lost_is_in_no_later_one(two: Ranks) -> None:
    two.run(_skips)


# ---- a rank that cannot begin ----


def _one_cannot_begin(here: Here, replicas: int) -> str:
    """The model trains as one without an algorithm, and another attach works."""
    mesh = init_device_mesh("cpu", (replicas, here.size // replicas), mesh_dim_names=("replicate", "shard"))
    model, other = _sharded(mesh["shard"]), _sharded(mesh["shard"])
    arguments = {"replicate": mesh["replicate"]} if replicas > 1 else {}
    with cannot_begin("bytegrad of shards") if here.rank == 1 else nullcontext():
        refused = refusal(lambda: _attached(model, "bytegrad", **arguments))
    for each in (model, other):
        backward(here, each, 0)
    want = _whole_gradients(other)
    assert all(torch.equal(each, want[name]) for name, each in _whole_gradients(model).items())
    model.zero_grad()
    comm = _attached(model, ByteGrad(bits=4, block=64), **arguments)
    backward(here, model, 1)
    _is_close(_whole_gradients(model), _exact(here, model, 1), 4)
    comm.detach()
    return refused


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_one_rank_cannot_begin_none_does(four: Ranks, replicas: int) -> None:
    refused = four.run(_one_cannot_begin, replicas)
    assert refused.pop(1) == "MemoryError: no such luck"
    assert set(refused) == {"ValueError: bagua_net.algorithms: attach: rank 1 refuses: MemoryError: no such luck"}


def _trains(here: Here) -> float:
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))
    model = _sharded(mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    attach(model, optimizer, "bytegrad")
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        x, y = batch(here, 0)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses[-1] / losses[0]


def test_a_sharded_model_learns(two: Ranks) -> None:
    assert max(two.run(_trains)) < 0.3


def _hsdp(here: Here) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return refusal(lambda: _attached(_sharded(mesh), "bytegrad"))


def _not_for_shards(here: Here) -> str:
    return refusal(
        lambda: _attached(_sharded(init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",))), "allreduce")
    )


def _multiplied_first(here: Here) -> str:
    model = _sharded(init_device_mesh("cpu", (here.size,), mesh_dim_names=("shard",)))
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(3.0)
    _attached(model, "bytegrad")
    return refusal(lambda: backward(here, model, 0))


def _of_another_shard(here: Here) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    comm = _attached(_sharded(mesh["shard"]), "bytegrad", replicate=mesh["replicate"])
    state = comm.state_dict()
    state["state"]["shard"] = (1 - state["state"]["shard"][0], 2)
    return refusal(lambda: comm.load_state_dict(state))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_of_another_shard, ["ValueError", "the state is of shard"]),
        (_hsdp, ["ValueError", 'replicate=mesh["replicate"]']),
        (_not_for_shards, ["ValueError", "DistributedDataParallel"]),
        (_multiplied_first, ["set_force_sum_reduction_for_comms"]),
    ],
)
def test_what_does_not_work_with_shards_says_so(four: Ranks, what: Any, words: list[str]) -> None:
    for refused in four.run(what):
        assert all(word in refused for word in words), refused
