# SPDX-License-Identifier: MIT
"""attach and what it returns, whatever the algorithm: a start that fails, DDP's special cases, the end. What is
refused: test_refusals_of_attach.py."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, ByteGrad, GradientAllReduce, attach
from bagua_net.algorithms._algorithm import AlgorithmImpl
from tests.algorithms.models import (
    WIDTH,
    backward,
    batch,
    ddp,
    exact_gradients,
    gradients,
    mean_of,
    net,
    same_on_all_ranks,
)
from tests.algorithms.survivor import survivor
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])


def _attached(model: nn.Module, algorithm: Any = "bytegrad", **arguments: Any) -> AlgorithmHandle:
    return attach(model, torch.optim.SGD(model.parameters(), lr=0.05), algorithm, **arguments)


def _threads() -> set[threading.Thread]:
    """Of algorithms. Those of models that earlier tests have dropped may still end."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("bagua_net bytegrad")}


# ---- a start that fails ----


def _fails_to_start(here: Here) -> None:
    """On all ranks, as where a collective fails. Nothing is left, and no group is used again."""
    # No other test has this timeout, so none has left groups that these models could use.
    group = dist.new_group(timeout=here.timeout + timedelta(seconds=1))
    model = DistributedDataParallel(net(), process_group=group, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _attached(DistributedDataParallel(net(), process_group=group)).detach()  # whose group the next algorithm takes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", _broken)
        assert "no such luck" in refusal(lambda: attach(model, optimizer, "auto"))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    for step in range(20):  # auto would try others than exact averages
        model.zero_grad()
        backward(here, model, step)
        _gradients_are_exact(here, model, step)
    before = dist.distributed_c10d._world.group_count
    _attached(model).detach()
    assert dist.distributed_c10d._world.group_count == before + 1, "the group of the failed attach is used again"


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("no such luck")


def test_a_start_that_fails_leaves_the_model_and_the_optimizer_as_they_were(two: Ranks) -> None:
    two.run(_fails_to_start)


# ---- what DDP does besides plain steps ----


def _gradients_are_exact(here: Here, model: nn.Module, step: int) -> None:
    got = gradients(model)
    for name, want in exact_gradients(here, model, step).items():
        assert torch.allclose(got[name], want, rtol=1e-5, atol=1e-7), name


def _gradients_are_close(here: Here, model: nn.Module, exact: dict[str, torch.Tensor]) -> None:
    got = gradients(model)
    assert same_on_all_ranks(here, got)
    for name, want in exact.items():
        assert torch.allclose(got[name], want, rtol=0.1, atol=0.1 * float(want.abs().max())), name


def _accumulates(here: Here, backend: str) -> None:
    model = ddp(here, backend)
    comm = _attached(model)
    with model.no_sync():
        backward(here, model, 0)
    assert comm.stats()["elements"] == 0, "no_sync was not"
    backward(here, model, 1)
    first, second = exact_gradients(here, model, 0), exact_gradients(here, model, 1)
    _gradients_are_close(here, model, {name: first[name] + second[name] for name in first})
    comm.detach()


def _has_unused(here: Here, backend: str) -> None:
    class Branches(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.last = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16), nn.Linear(16, 5)

        def forward(self, x: torch.Tensor, other: bool) -> torch.Tensor:
            return self.last((self.unused if other else self.used)(x))

    torch.manual_seed(0)
    model = ddp(here, backend, Branches(), find_unused_parameters=True)
    comm = _attached(model)
    for step in range(3):
        model.zero_grad()
        x, y = batch(here, step)
        nn.functional.mse_loss(model(x, step == 1 and here.rank == 0), y).backward()
        got = gradients(model)
        assert same_on_all_ranks(here, got)
        assert got["unused.weight"].abs().sum() > 0 if step == 1 else "unused.weight" not in got
    comm.detach()


def _frozen_after_wrapping(here: Here, backend: str) -> None:
    """DDP has it in a bucket, and nobody trains it."""
    model = ddp(here, backend, find_unused_parameters=True)
    model.module[0].weight.requires_grad_(False)
    comm = _attached(model)
    for step in range(2):
        model.zero_grad()
        backward(here, model, step)
    trained = {name for name, each in model.module.named_parameters() if each.requires_grad}
    state = comm.state_dict()
    assert set(state["state"]["residuals"]) == trained
    comm.load_state_dict(state)
    comm.detach()


def _static_graph(here: Here, backend: str) -> None:
    model = ddp(here, backend, static_graph=True)
    comm = _attached(model)
    for step in range(3):
        model.zero_grad()
        backward(here, model, step)
        _gradients_are_close(here, model, exact_gradients(here, model, step))
    comm.detach()


def _bucket_views(here: Here, backend: str) -> None:
    model = ddp(here, backend, gradient_as_bucket_view=True)
    comm = _attached(model)
    for step in range(3):
        model.zero_grad()
        backward(here, model, step)
        _gradients_are_close(here, model, exact_gradients(here, model, step))
    comm.detach()


def _two_models(here: Here, backend: str) -> None:
    """Their backward passes interleave, on their own groups."""
    models = [ddp(here, backend), ddp(here, backend, net(1))]
    comms = [_attached(model) for model in models]
    for step in range(3):
        losses = []
        for model in models:
            model.zero_grad()
            x, y = batch(here, step)
            losses.append(nn.functional.mse_loss(model(x), y))
        (losses[0] + losses[1]).backward()
        for model in models:
            assert same_on_all_ranks(here, gradients(model))
    for comm in comms:
        comm.detach()


def _bfloat16(here: Here, backend: str) -> None:
    model = ddp(here, backend, net().to(torch.bfloat16))
    comm = _attached(model)
    for step in range(3):
        model.zero_grad()
        x, y = batch(here, step)
        nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
        assert same_on_all_ranks(here, gradients(model))
    comm.detach()


def _joins(here: Here, backend: str) -> None:
    """Uneven inputs: rank 0 has two batches more."""
    model = ddp(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(model, optimizer, "bytegrad")
    with Join([model]):
        for step in range(4 if here.rank == 0 else 2):
            optimizer.zero_grad()
            backward(here, model, step)
            optimizer.step()
    assert same_on_all_ranks(here, dict(model.module.named_parameters()))
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "what",
    [_accumulates, _has_unused, _frozen_after_wrapping, _static_graph, _bucket_views, _two_models, _bfloat16, _joins],
)
def test_what_ddp_does_besides_plain_steps(two: Ranks, what: Callable[..., None], backend: str) -> None:
    two.run(what, backend)


# ---- GradScaler ----


def _scales(here: Here, backend: str) -> None:
    """A gradient that is not finite on rank 1 makes all ranks skip the step, and the scale change with it."""
    model = ddp(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    comm = attach(model, optimizer, "bytegrad", scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        before = {name: each.clone() for name, each in model.module.named_parameters()}
        x, y = batch(here, step)
        if step == 2 and here.rank == 1:
            x[0, 0] = float("inf")
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        parameters = dict(model.module.named_parameters())
        assert same_on_all_ranks(here, parameters)
        assert all(torch.equal(before[name], each) for name, each in parameters.items()) == (step == 2)
        assert scaler.get_scale() == (512.0 if step >= 2 else 1024.0)
        assert all(each.isfinite().all() for each in comm.state_dict()["state"]["residuals"].values())
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_one_rank_must_skip_is_skipped_by_all(two: Ranks, backend: str) -> None:
    two.run(_scales, backend)


def _follows(here: Here) -> None:
    """What was lost at one scale comes at another: the sums of unscaled gradients agree."""
    model = ddp(here, "bagua_net")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)  # doubles with each step
    comm = attach(model, optimizer, ByteGrad(bits=4, block=32), scaler=scaler)
    wanted, got = torch.zeros(40, WIDTH).double(), torch.zeros(40, WIDTH).double()
    for step in range(6):
        wanted += exact_gradients(here, model, step)["0.weight"]
        optimizer.zero_grad()
        x, y = batch(here, step)
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.unscale_(optimizer)
        got += gradients(model)["0.weight"]
        scaler.step(optimizer)
        scaler.update()
    state = comm.state_dict()["state"]
    residual = mean_of(here, state["residuals"]["0.weight"].double()).view_as(wanted) / state["scale"]
    assert torch.allclose(got + residual, wanted, rtol=0, atol=1e-6)
    comm.detach()


def test_residuals_follow_the_scale(two: Ranks) -> None:
    two.run(_follows)


# ---- pause, end ----


def _pauses(here: Here, backend: str) -> None:
    model = ddp(here, backend)
    comm = _attached(model, ByteGrad(bits=4))

    def is_exact(step: int) -> bool:
        model.zero_grad()
        backward(here, model, step)
        exact = exact_gradients(here, model, step)
        return all(torch.allclose(got, exact[name], rtol=1e-5, atol=1e-7) for name, got in gradients(model).items())

    assert [is_exact(0), is_exact(1)] == [False, False]
    comm.pause()
    assert is_exact(2)
    comm.resume()
    assert not is_exact(3)
    comm.detach()
    assert is_exact(4)
    again = _attached(model, ByteGrad(bits=4))
    assert not is_exact(5)
    again.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_abort_resume_and_detach_switch_between_steps(two: Ranks, backend: str) -> None:
    two.run(_pauses, backend)


def _is_freed(here: Here) -> None:
    before = _threads()
    model = ddp(here, "bagua_net")
    comm = _attached(model)
    backward(here, model, 0)
    (thread,) = _threads() - before
    gone = weakref.ref(model)
    del model, comm
    gc.collect()
    assert gone() is None
    thread.join(30)
    assert not thread.is_alive()


def test_a_model_that_is_dropped_is_freed_and_its_thread_ends(two: Ranks) -> None:
    two.run(_is_freed)


def _at_work() -> int:
    """How many algorithms there are in memory."""
    gc.collect()
    return sum(issubclass(type(each), AlgorithmImpl) for each in gc.get_objects())


def _is_forgotten(here: Here) -> None:
    before = _at_work()
    model = ddp(here, "bagua_net")
    comm = _attached(model)
    backward(here, model, 0)
    assert _at_work() > before
    comm.detach()
    assert _at_work() <= before, "residuals stay in memory until the next backward pass"


def test_a_detached_algorithm_is_freed_before_the_next_backward_pass(two: Ranks) -> None:
    two.run(_is_forgotten)


def _many_times(here: Here) -> int:
    """Groups are used again."""
    threads = _threads()
    model = ddp(here, "bagua_net")
    for _ in range(3):
        _attached(model).detach()
    before = dist.distributed_c10d._world.group_count
    for _ in range(5):
        _attached(model).detach()
    assert _threads() <= threads
    return int(dist.distributed_c10d._world.group_count - before)


def test_attaching_again_and_again_makes_no_more_groups(two: Ranks) -> None:
    assert two.run(_many_times) == [0, 0]


def _fails_on_one_rank(here: Here) -> None:
    """Its group is not used again there, and the other rank has given it back."""
    # No other test has this timeout, so none has left groups that this model could use.
    group = dist.new_group(timeout=here.timeout + timedelta(seconds=2))
    model = DistributedDataParallel(net(), process_group=group)
    comm = _attached(model)
    if here.rank == 0:
        comm._context.runner.post(_broken)
    comm.detach(synchronize=False)
    again = _attached(model)
    backward(here, model, 0)
    assert again._context.own is not comm._context.own
    again.detach()
    third = _attached(model)
    assert third._context.own is again._context.own
    third.detach()


def test_after_a_failure_on_one_rank_alone_all_of_them_make_new_groups(two: Ranks) -> None:
    two.run(_fails_on_one_rank)


def _part_of_the_ranks(here: Here) -> None:
    """A model on some ranks: the others take no part in its attach."""
    pair = dist.new_group([0, 2], timeout=here.timeout)
    if here.rank in (0, 2):
        for _ in range(2):
            model = DistributedDataParallel(net(), process_group=pair)
            comm = _attached(model)
            backward(here, model, 0)
            flat = torch.cat([each.reshape(-1) for each in gradients(model).values()])
            other = flat.clone()
            dist.broadcast(other, src=0, group=pair)
            assert torch.equal(flat, other)
            comm.detach()
    dist.barrier()


@pytest.mark.gate
def test_a_model_on_some_of_the_ranks(four: Ranks) -> None:
    four.run(_part_of_the_ranks)


def _bound(here: Here) -> None:
    """As with ``init_process_group("nccl", device_id=...)``: torch looks for what it could split."""
    pair = dist.new_group([0, 2], timeout=here.timeout + timedelta(seconds=3))  # whose groups no other test has left
    world = dist.group.WORLD
    device = torch.device("cuda", 3)
    if here.rank in (0, 2):
        model = DistributedDataParallel(net(), process_group=pair)
        world.bound_device_id = device
        try:
            _attached(model).detach()
            assert world.bound_device_id == device
        finally:
            world.bound_device_id = None
    dist.barrier()


@pytest.mark.gate
def test_a_group_of_some_ranks_is_not_split_from_the_default_group(four: Ranks) -> None:
    four.run(_bound)


_DETACHES_LATE = """
import torch, torch.distributed as dist
from bagua_net.algorithms import attach

def begin():
    dist.init_process_group("bagua_net", store=dist.HashStore(), rank=0, world_size=1)

def attached():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8, bias=False))
    return model, attach(model, torch.optim.SGD(model.parameters()), "bytegrad")

def trained(model, comm):
    model(torch.ones(1, 8)).sum().backward()
    return comm.stats()["buckets"]

begin()
first = attached()
trained(*first)
dist.destroy_process_group()
first[1].detach()
begin()
second = attached()
trained(*second)
dist.destroy_process_group()
begin()
second[1].detach()
print(trained(*attached()))
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_a_detach_after_the_group_was_destroyed_leaves_nothing_to_the_next_one() -> None:
    command = [sys.executable, "-W", "ignore", "-c", _DETACHES_LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr


# ---- a rank that dies ----


def _dies(here: Here, backend: str) -> str:
    model = ddp(here, backend)
    comm = _attached(model)
    backward(here, model, 0)
    here.say(f"trained/{here.rank}")
    raised = ""
    for step in range(1, 10_000):  # until the other one is gone
        raised = refusal(partial(backward, here, model, step))
        if raised != "accepted":
            break
    later = refusal(lambda: backward(here, model, 0))
    assert later != "accepted"
    comm.detach()
    return raised


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_ends_the_others_with_an_error(backend: str) -> None:
    said = survivor(_dies, backend)
    assert "rank 1" in said or backend == "gloo", said
    assert "cast" not in said


# ---- hierarchical all-reduce ----


def _by_nodes(here: Here, backend: str) -> None:
    model = ddp(here, backend)
    comm = _attached(model, GradientAllReduce(hierarchical=True, ranks_per_node=2))
    for step in range(3):
        model.zero_grad()
        backward(here, model, step)
        got = gradients(model)
        assert same_on_all_ranks(here, got)
        for name, want in exact_gradients(here, model, step).items():
            assert torch.allclose(got[name], want, rtol=1e-5, atol=1e-7), name
    assert comm.stats()["bytes"] > 0
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_reduce_by_nodes_is_exact(four: Ranks, backend: str) -> None:
    four.run(_by_nodes, backend)


# ---- hooks of torch that start several collectives ----


def _power_sgd(here: Here, waits: bool) -> list[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        if waits:
            future.wait()
        return future

    hook.__annotations__ = {}
    torch.manual_seed(0)
    model = ddp(here, "bagua_net")
    state = powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    assert same_on_all_ranks(here, dict(model.module.named_parameters()))
    return [each.detach().clone() for each in model.parameters()]


def _power_sgd_in_order(here: Here) -> None:
    for free, waiting in zip(_power_sgd(here, False), _power_sgd(here, True), strict=True):
        assert torch.equal(free, waiting)


@pytest.mark.nightly
def test_power_sgd_on_many_buckets_trains_as_one_bucket_after_the_other(ranks: Ranks) -> None:
    """Its callbacks start collectives while backward starts those of other buckets. gloo hangs there, now and then."""
    ranks.run(_power_sgd_in_order)


# ---- all-reduce of 16-bit floats ----


def _rounded(here: Here, backend: str, wire: str) -> None:
    model = ddp(here, backend)
    comm = _attached(model, GradientAllReduce(wire=wire))
    for step in range(2):
        model.zero_grad()
        backward(here, model, step)
        got = gradients(model)
        assert same_on_all_ranks(here, got)
        for name, want in exact_gradients(here, model, step).items():
            assert torch.allclose(got[name], want, rtol=0.03, atol=0.01 * float(want.abs().max())), name
            assert torch.equal(got[name].to(getattr(torch, wire)).float(), got[name]), f"{name} was not rounded"
    assert comm.stats()["bytes"] * 2 * here.size == 2 * (here.size - 1) * 4 * comm.stats()["elements"]
    comm.detach()


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_reduce_of_16_bit_floats(two: Ranks, backend: str, wire: str) -> None:
    two.run(_rounded, backend, wire)
