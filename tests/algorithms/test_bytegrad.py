# SPDX-License-Identifier: MIT
"""ByteGrad on DistributedDataParallel: what it averages, what it keeps, what it refuses."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import ByteGrad, attach
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
from tests.support.pool import Pool
from tests.support.rank import Here
from tests.support.ranks import Ranks
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])


def _averages(here: Here, backend: str, bits: int) -> None:
    model = ddp(here, backend)
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), ByteGrad(bits=bits, block=64))
    for step in range(3):
        exact = exact_gradients(here, model, step)
        model.zero_grad()
        backward(here, model, step)
        got = gradients(model)
        assert same_on_all_ranks(here, got)
        for name, want in exact.items():
            if want.dim() == 1:
                assert torch.allclose(got[name], want, rtol=1e-5, atol=1e-8), name
                continue
            # Ranges of whole parameters are at least those of their blocks; residuals add a step of an earlier one.
            largest = mean_of(here, want.abs().max()) * 4
            assert (got[name] - want).abs().max() <= 3 * largest / (2**bits - 1), name
            assert not torch.equal(got[name], want), f"{name} was not compressed"
    stats = comm.stats()
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert stats["elements"] == 3 * elements
    assert 0 < stats["bytes"] < 3 * elements * 4
    comm.detach()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_averaged_within_the_codecs_steps_and_equal_on_all_ranks(
    ranks: Ranks, backend: str, bits: int
) -> None:
    ranks.run(_averages, backend, bits)


Sums = dict[str, torch.Tensor]


def _train(here: Here, model: DistributedDataParallel, steps: range, wanted: Sums, got: Sums) -> None:
    """Adds up what exact averages would have been, and what the model got."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in steps:
        for name, exact in exact_gradients(here, model, step).items():
            wanted[name] = wanted.get(name, 0) + exact.double()
        optimizer.zero_grad()
        backward(here, model, step)
        for name, each in gradients(model).items():
            got[name] = got.get(name, 0) + each.double()
        optimizer.step()


def _is_lost(here: Here, residuals: Sums, wanted: Sums, got: Sums) -> list[str]:
    """Parameters for which the ranks' residuals are not what the averages lack."""
    lost = []
    for name in wanted:
        if wanted[name].dim() > 1:
            residual = mean_of(here, residuals[name].double()).view_as(wanted[name])
            assert residual.abs().max() > 0, f"{name} has lost nothing"
            if not torch.allclose(got[name] + residual, wanted[name], rtol=0, atol=2e-6):
                lost.append(name)
    return lost


def _loses_nothing(here: Here, backend: str) -> None:
    model = ddp(here, backend)
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), ByteGrad(bits=4, block=32))
    wanted: Sums = {}
    got: Sums = {}
    _train(here, model, range(12), wanted, got)  # DDP cuts its buckets anew after the first step
    assert _is_lost(here, comm.state_dict()["state"]["residuals"], wanted, got) == []
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_encoding_loses_comes_with_later_steps(ranks: Ranks, backend: str) -> None:
    ranks.run(_loses_nothing, backend)


def _shares_hosts(here: Here, backend: str) -> None:
    """Each rank takes the residual of one share of a bucket only: what it has had elsewhere, before buckets changed,
    would stay as it was."""
    model = ddp(here, backend)
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), ByteGrad(bits=4, block=32))
    wanted: Sums = {}
    got: Sums = {}
    _train(here, model, range(6), wanted, got)
    before = comm.state_dict()["state"]["residuals"]
    assert _is_lost(here, before, wanted, got) == []
    _train(here, model, range(6, 7), wanted, got)
    after = comm.state_dict()["state"]["residuals"]
    for name, each in before.items():
        assert not (each.ne(0) & each.eq(after[name])).any(), f"{name} has a residual that nobody adds"
    comm.detach()


@pytest.mark.parametrize("backend", variants("gloo", nightly=["bagua_net"]))
def test_no_residual_is_left_where_a_rank_does_not_look_again(pool: Pool, backend: str) -> None:
    pool.of(4, hosts=2).run(_shares_hosts, backend)


def _sent(here: Here) -> tuple[float, float]:
    """By the same two ranks with one rank on each host, and by this rank with two on each."""
    pairs = [dist.new_group([first, first + 2], backend="gloo") for first in (0, 1)]
    counts = []
    for group in (pairs[here.rank % 2], here.gloo):
        model = DistributedDataParallel(net(), process_group=group)
        comm = attach(
            model, torch.optim.SGD(model.parameters(), lr=0.1), ByteGrad(block=32, exact_one_dimensional=False)
        )
        backward(here, model, 0)
        got = gradients(model)
        assert same_on_all_ranks(here, got) or group is not here.gloo
        counts.append(comm.stats()["bytes"])
        comm.detach()
    return counts[0], counts[1]


def test_a_host_sends_what_one_rank_would(pool: Pool) -> None:
    """Each of its ranks a part of it: half, and less than two blocks of 32 elements and 8 bytes for each exchange."""
    for one, of_two in pool.of(4, hosts=2).run(_sent):
        assert one / 2 <= of_two < one / 2 + 4 * 40


class _Sometimes(nn.Module):  # type: ignore[misc]
    """Has a layer that a step may do without."""

    uses = True

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = net(), nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.always(x)
        return out + self.sometimes(x) if self.uses else out


def _does_without(here: Here, arguments: dict[str, Any]) -> None:
    model = ddp(here, "gloo", _Sometimes(), find_unused_parameters=True, **arguments)
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), ByteGrad(bits=4, block=32))
    weight = model.module.sometimes.weight
    wanted, got = torch.zeros_like(weight, dtype=torch.float64), torch.zeros_like(weight, dtype=torch.float64)
    for step, users in enumerate([2, 2, 0, 0, 1, 0, 2, 0]):
        model.module.uses = here.rank < users
        copy = deepcopy(model.module)
        backward(here, copy, step)
        own = copy.sometimes.weight.grad
        wanted += mean_of(here, torch.zeros_like(wanted) if own is None else own.double())
        model.zero_grad(set_to_none=False)
        backward(here, model, step)
        assert users or not weight.grad.any()
        got += weight.grad
    residual = comm.state_dict()["state"]["residuals"]["sometimes.weight"].view_as(got)
    assert residual.any()
    assert torch.allclose(got + mean_of(here, residual.double()), wanted, rtol=0, atol=2e-6)
    comm.detach()


@pytest.mark.parametrize("arguments", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "bucket-views"])
def test_a_parameter_that_no_rank_uses_keeps_its_residual(two: Ranks, arguments: dict[str, Any]) -> None:
    two.run(_does_without, arguments)


def _resumes(here: Here, loads: bool) -> list[str]:
    wanted: Sums = {}
    got: Sums = {}
    model = ddp(here, "bagua_net")
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), ByteGrad(bits=4, block=32))
    _train(here, model, range(3), wanted, got)
    state, weights = io.BytesIO(), model.module.state_dict()
    torch.save(comm.state_dict(), state)
    comm.detach()
    model = ddp(here, "bagua_net")
    model.module.load_state_dict(weights)
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), ByteGrad(bits=4, block=32))
    if loads:
        comm.load_state_dict(torch.load(io.BytesIO(state.getvalue()), weights_only=True))
    _train(here, model, range(3, 6), wanted, got)
    lost = _is_lost(here, comm.state_dict()["state"]["residuals"], wanted, got)
    comm.detach()
    return lost


def _rescales(here: Here, before: float | None, after: float | None) -> None:
    """A run with one scale of gradients, or with none, goes on with another. They are those of a GradScaler."""
    state: Any = None
    wanted, got = torch.zeros(40, WIDTH).double(), torch.zeros(40, WIDTH).double()
    for scale, steps in ((before, range(3)), (after, range(3, 6))):
        model = ddp(here, "bagua_net")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        comm = attach(model, optimizer, ByteGrad(bits=4, block=32), scaler=scaler)
        if state is not None:
            comm.load_state_dict(state)
        for step in steps:
            wanted += exact_gradients(here, model, step)["0.weight"]
            optimizer.zero_grad()
            x, y = batch(here, step)
            scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
            got += gradients(model)["0.weight"] / (scale or 1.0)
        state = comm.state_dict()
        comm.detach()
    residual = mean_of(here, state["state"]["residuals"]["0.weight"].double()).view_as(wanted) / (after or 1.0)
    assert torch.allclose(got + residual, wanted, rtol=0, atol=1e-6)


def _skips(here: Here, backend: str) -> None:
    """Gradients explode, and one rank's are not finite: what encoding them has lost is larger than usual gradients."""
    model = ddp(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    comm = attach(model, optimizer, ByteGrad(bits=4, block=32), scaler=scaler)
    for step in range(4):
        wanted = exact_gradients(here, model, step)["0.weight"]
        optimizer.zero_grad()
        x, y = batch(here, step)
        scale = scaler.get_scale()
        explodes = (float("inf") if here.rank == 1 else 1e6) if step == 2 else 1.0
        scaler.scale(nn.functional.mse_loss(model(x), y) * explodes).backward()
        got = gradients(model)["0.weight"] / scale
        scaler.step(optimizer)
        scaler.update()
        residuals = comm.state_dict()["state"]["residuals"]
        if step == 2:
            assert scaler.get_scale() < scale, "the step was not skipped"
            assert not any(each.any() for each in residuals.values())
        else:
            assert torch.allclose(got, wanted, rtol=0, atol=0.2 * float(wanted.abs().max()))
            assert residuals["0.weight"].any()
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_skipped_step_has_lost_is_in_no_later_one(two: Ranks, backend: str) -> None:
    two.run(_skips, backend)


@pytest.mark.parametrize(("before", "after"), [(1024.0, None), (None, 1024.0), (1024.0, 64.0)])
def test_residuals_of_a_checkpoint_have_the_scale_of_the_run(
    two: Ranks, before: float | None, after: float | None
) -> None:
    two.run(_rescales, before, after)


def test_a_resumed_run_goes_on_with_its_residuals(two: Ranks) -> None:
    assert two.run(_resumes, True) == [[], []]
    assert all(two.run(_resumes, False)), "the residuals make no difference"


def _loads_for_nothing(here: Here, backend: str) -> None:
    model = ddp(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    comm = attach(model, optimizer, ByteGrad(bits=4))
    backward(here, model, 0)
    saved = comm.state_dict()
    assert saved["state"]["residuals"]
    comm.detach()
    comm = attach(model, optimizer, ByteGrad(bits=4, error_feedback=False))
    comm.load_state_dict(saved)
    assert comm.state_dict()["state"]["residuals"] == {}
    backward(here, model, 1)
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_residuals_that_are_loaded_without_error_feedback_are_not_kept(two: Ranks, backend: str) -> None:
    two.run(_loads_for_nothing, backend)


def _within_a_host(here: Here) -> None:
    model = ddp(here, "bagua_net")
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), ByteGrad(bits=4, block=32))
    for step in range(2):
        model.zero_grad()
        backward(here, model, step)
        for name, want in exact_gradients(here, model, step).items():
            assert torch.allclose(gradients(model)[name], want, rtol=1e-5, atol=1e-7), name
    assert all(not each.any() for each in comm.state_dict()["state"]["residuals"].values())
    comm.detach()


@pytest.mark.nightly
def test_ranks_that_share_memory_send_no_codes() -> None:
    with Ranks(2) as ranks:
        ranks.run(_within_a_host)
