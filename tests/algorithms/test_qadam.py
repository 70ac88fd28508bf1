# SPDX-License-Identifier: MIT
"""QAdam: its optimizer in both phases, what the ranks average, what is kept."""

from __future__ import annotations

import copy
import io
import unittest
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import Algorithm, AlgorithmHandle, ByteGrad, QAdam, QAdamOptimizer, attach
from tests.algorithms.controls import (
    CorrectsFrozenVariance,
    FirstGroupsBetas,
    LostGradient,
    MovingVariance,
    WithoutDecay,
)
from tests.algorithms.models import backward, ddp, exact_gradients, gradients, mean_of, net, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
BITS = [8, 1]
WARM_UP = 3

# ---- the optimizer against Adam, and against the formulas ----


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *others = model.parameters()
    return [
        {"params": [first], "lr": 0.02, "betas": (0.8, 0.999), "weight_decay": 0.1},
        {"params": others, "lr": 0.05, "betas": (0.5, 0.9), "weight_decay": 0.02},
    ]


def test_the_warm_up_is_adam_to_the_last_bit() -> None:
    ours, theirs = net(), net()
    one = QAdamOptimizer(_groups(ours), warmup_steps=6)
    other = torch.optim.Adam(_groups(theirs))
    for _ in range(6):
        for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        one.step()
        other.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert not one.is_warming_up


class _Given(nn.Module):  # type: ignore[misc]
    """The gradients of its two parameters are the inputs. They have one dimension, and so are averaged exactly."""

    def __init__(self, elements: int = 96) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.one, self.two = nn.Parameter(torch.randn(elements)), nn.Parameter(torch.randn(elements))

    def forward(self, gradients: torch.Tensor) -> torch.Tensor:
        return (self.one * gradients[0] + self.two * gradients[1]).sum()


class _Formulas:
    """Of one parameter, in float64."""

    def __init__(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        self.x = parameter.detach().double().clone()
        self.m, self.v = torch.zeros_like(self.x), torch.zeros_like(self.x)
        self._group, self._steps = group, 0

    def step(self, gradient: torch.Tensor) -> None:
        (beta1, beta2), self._steps = self._group["betas"], self._steps + 1
        gradient = gradient + self._group["weight_decay"] * self.x
        self.m = beta1 * self.m + (1 - beta1) * gradient
        if self._steps <= WARM_UP:
            self.v = beta2 * self.v + (1 - beta2) * gradient**2
        variance = self.v / (1 - beta2 ** min(self._steps, WARM_UP))
        self.x -= self._group["lr"] * self.m / (1 - beta1**self._steps) / (variance.sqrt() + 1e-8)


def _off(
    here: Here, algorithm: Algorithm, made: type[QAdamOptimizer], micro_steps: int = 1, pauses: bool = False
) -> float:
    """How far training comes from the formulas: the greatest difference of an element."""
    model = ddp(here, "bagua_net", _Given())
    groups = _groups(model)
    formulas = [_Formulas(each, group) for each, group in zip(model.parameters(), groups, strict=True)]
    optimizer = made(groups, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, algorithm)
    draw = torch.Generator().manual_seed(here.rank)
    off = 0.0
    for step in range(10):
        if pauses and step == 5:
            comm.pause()
        if pauses and step == 7:
            comm.resume()
        micro = torch.randn(micro_steps, 2, 96, generator=draw) + 0.5
        optimizer.zero_grad()
        for each in micro[:-1]:
            with model.no_sync():
                model(each).backward()
        model(micro[-1]).backward()
        optimizer.step()
        for parameter, formula, gradient in zip(
            model.parameters(), formulas, mean_of(here, micro.double().sum(0)), strict=True
        ):
            formula.step(gradient)
            off = max(off, float((parameter - formula.x).abs().max()))
    comm.detach()
    return off


@pytest.mark.parametrize("bits", BITS)
def test_both_phases_follow_the_formulas(ranks: Ranks, bits: int) -> None:
    assert max(ranks.run(_off, QAdam(bits=bits), QAdamOptimizer)) < 1e-5


def test_momentum_is_formed_once_of_accumulated_gradients(two: Ranks) -> None:
    assert max(two.run(_off, QAdam(), QAdamOptimizer, 3)) < 1e-5


def test_a_pause_averages_gradients_and_momentum_goes_on(two: Ranks) -> None:
    assert max(two.run(_off, QAdam(), QAdamOptimizer, 1, True)) < 1e-5


class _GivenInPart(_Given):
    """Does without the second one where its gradients are zero."""

    def forward(self, gradients: torch.Tensor) -> torch.Tensor:
        return super().forward(gradients) if gradients[1].any() else (self.one * gradients[0]).sum()


def _decays(here: Here, algorithm: Algorithm, arguments: dict[str, Any]) -> None:
    model = ddp(here, "gloo", _GivenInPart(), find_unused_parameters=True, **arguments)
    groups = _groups(model)
    formulas = [_Formulas(each, group) for each, group in zip(model.parameters(), groups, strict=True)]
    optimizer = QAdamOptimizer(groups, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, algorithm)
    draw = torch.Generator().manual_seed(here.rank)
    for step, users in enumerate([2, 0, 2, 2, 2, 0, 0, 1, 0, 2]):
        given = torch.randn(2, 96, generator=draw) + 0.5
        given[1] *= here.rank < users
        optimizer.zero_grad(set_to_none=False)
        model(given).backward()
        optimizer.step()
        for parameter, formula, gradient in zip(
            model.parameters(), formulas, mean_of(here, given.double()), strict=True
        ):
            formula.step(gradient)
            assert torch.allclose(parameter.double(), formula.x, rtol=0, atol=1e-5), f"step {step}"
    comm.detach()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("arguments", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "bucket-views"])
def test_momentum_of_a_parameter_that_no_rank_uses_decays(two: Ranks, bits: int, arguments: dict[str, Any]) -> None:
    two.run(_decays, QAdam(bits=bits), arguments)


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [
        (LostGradient(), QAdamOptimizer),
        (QAdam(), CorrectsFrozenVariance),
        (QAdam(), FirstGroupsBetas),
        (QAdam(), WithoutDecay),
        (QAdam(), MovingVariance),
    ],
    ids=["lost-gradient", "corrects-frozen-variance", "first-groups-betas", "without-decay", "moving-variance"],
)
def test_with_defects_they_do_not(two: Ranks, algorithm: Algorithm, optimizer: type[QAdamOptimizer]) -> None:
    assert min(two.run(_off, algorithm, optimizer)) > 1e-3


# ---- what the ranks average ----


def _averages(here: Here, backend: str, bits: int) -> None:
    model = ddp(here, backend)
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, QAdam(bits=bits, block=64))
    sent = 0.0
    for step in range(8):
        exact = exact_gradients(here, model, step)
        momenta = {name: optimizer.state[each].get("exp_avg") for name, each in model.module.named_parameters()}
        momenta = {name: each.clone() for name, each in momenta.items() if each is not None}
        optimizer.zero_grad()
        backward(here, model, step)
        got = gradients(model)
        assert same_on_all_ranks(here, got)
        for name, gradient in exact.items():
            if step < WARM_UP or gradient.dim() == 1:
                want = gradient if step < WARM_UP else momenta[name].lerp(gradient, 0.1)
                assert torch.allclose(got[name], want, rtol=1e-4, atol=1e-6), name
            else:
                off = (got[name] - momenta[name].lerp(gradient, 0.1)).norm() / got[name].norm()
                assert 1e-4 < off < (0.05 if bits == 8 else 1.5), f"{name}: {off}"
        optimizer.step()
        assert same_on_all_ranks(here, dict(model.module.named_parameters()))
        sent_before, sent = sent, comm.stats()["bytes"]
        if step == WARM_UP - 1:
            exactly = sent - sent_before
    assert sent - sent_before < exactly / 2
    comm.detach()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_then_momentum_are_averaged_and_equal_on_all_ranks(ranks: Ranks, backend: str, bits: int) -> None:
    ranks.run(_averages, backend, bits)


def _zeros(here: Here, bits: int) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(40, 8, padding_idx=0)
    model = ddp(here, "bagua_net", nn.Sequential(embedding, nn.Flatten(), nn.Linear(32, 3)))
    optimizer = QAdamOptimizer(model.parameters(), lr=0.05, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, QAdam(bits=bits, block=64))
    before = embedding.weight.detach().clone()
    draw = torch.Generator().manual_seed(here.rank)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randint(30, (16, 4), generator=draw)).square().sum().backward()
            optimizer.step()

    with unittest.TestCase().assertLogs("bagua_net.algorithms", "WARNING") as log:
        train(WARM_UP)
    assert "88 of 419 elements had no gradient" in log.output[0], log.output
    train(5)
    assert torch.equal(embedding.weight[0], before[0])
    assert torch.equal(embedding.weight[30:], before[30:])
    assert (embedding.weight[1:30] != before[1:30]).all()
    comm.detach()


@pytest.mark.parametrize("bits", BITS)
def test_elements_without_a_gradient_stay_as_they_are(two: Ranks, bits: int) -> None:
    two.run(_zeros, bits)


def _channels_last(here: Here, bits: int, arguments: dict[str, Any]) -> None:
    """DDP lays gradients out as the parameters are. Momentum is of the same elements as the gradients that made it."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 5, 3)).to(
        memory_format=torch.channels_last
    )
    model = ddp(here, "gloo", convolutions, **arguments)
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, QAdam(bits=bits, block=32))
    draw = torch.Generator().manual_seed(here.rank)
    for _ in range(WARM_UP + 1):
        alone = copy.deepcopy(model.module).to(memory_format=torch.channels_last)
        alone.zero_grad()
        optimizer.zero_grad()
        x = torch.randn(4, 3, 7, 7, generator=draw)
        for each in (alone, model):
            each(x).square().mean().backward()
        wanted = {name: mean_of(here, each.grad) for name, each in alone.named_parameters() if each.grad is not None}
        momenta = {name: optimizer.state.get(each) for name, each in model.module.named_parameters()}
        if all(momenta.values()):
            wanted = {name: momenta[name]["exp_avg"].lerp(each, 1 - 0.9) for name, each in wanted.items()}
        found = gradients(model)
        optimizer.step()
    root = {name: momenta[name]["exp_avg_sq"].sqrt() for name in wanted}
    for name in ("0.weight", "2.weight"):
        pair = torch.stack([(each[name] / root[name]).flatten() for each in (found, wanted)])
        assert torch.corrcoef(pair)[0, 1] > (0.99 if bits == 8 else 0.6), name
    comm.detach()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("arguments", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "bucket-views"])
def test_momentum_is_of_the_right_elements_whatever_their_layout(
    two: Ranks, bits: int, arguments: dict[str, Any]
) -> None:
    two.run(_channels_last, bits, arguments)


class _WithUnused(nn.Module):  # type: ignore[misc]
    """A scalar, an empty parameter, and a part that no step uses, or that is used in some of the steps alone."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.nothing = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.zeros(0))
        self.net, self.unused, self.sometimes = net(), nn.Linear(24, 5), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x) * self.factor + self.nothing.sum()
        return out + self.sometimes(x) if float(x[0, 0]) > 0 else out


def _besides(here: Here, bits: int, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    model = ddp(here, "gloo", _WithUnused().to(dtype), find_unused_parameters=True, **arguments)
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, QAdam(bits=bits, block=64))
    before = model.module.unused.weight.detach().clone()
    losses = []
    for step in range(8):
        x = torch.ones(4, 24, dtype=dtype)
        x[0, 0] = 1 if (step + here.rank) % 3 == 0 else -1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(mean_of(here, loss.detach().float()))
    trained = {name: each.float() for name, each in model.module.named_parameters()}
    assert same_on_all_ranks(here, trained)
    assert all(each.isfinite().all() for each in trained.values())
    assert losses[-1] < losses[0] / 2
    assert torch.equal(model.module.unused.weight, before)
    comm.detach()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [({}, torch.float32), ({"gradient_as_bucket_view": True}, torch.bfloat16)],
    ids=["float32", "bucket-views-in-bfloat16"],
)
def test_what_models_have_besides(two: Ranks, bits: int, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    two.run(_besides, bits, arguments, dtype)


# ---- what is kept ----


def set_up(here: Here, bits: int) -> tuple[DistributedDataParallel, QAdamOptimizer, AlgorithmHandle]:
    """find_unused_parameters: DDP then keeps the buckets of its first step, and a resumed run has the same."""
    model = ddp(here, "bagua_net", find_unused_parameters=True)
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=WARM_UP)
    return model, optimizer, attach(model, optimizer, QAdam(bits=bits, block=64))


def train(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()


def _resumes(here: Here, bits: int, at: int, with_residuals: bool = True) -> bool:
    """Whether a run that is resumed before a step ends as one that was not."""
    model, optimizer, comm = set_up(here, bits)
    train(here, model, optimizer, range(at))
    saved = io.BytesIO()
    torch.save([model.module.state_dict(), optimizer.state_dict(), comm.state_dict()], saved)
    train(here, model, optimizer, range(at, at + 3))
    comm.detach()
    again, optimizer, comm = set_up(here, bits)
    weights, moments, residuals = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    again.module.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    if with_residuals:
        comm.load_state_dict(residuals)
    train(here, again, optimizer, range(at, at + 3))
    comm.detach()
    return all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("at", [WARM_UP - 1, WARM_UP, WARM_UP + 2])
@pytest.mark.parametrize("bits", BITS)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(two: Ranks, bits: int, at: int) -> None:
    assert two.run(_resumes, bits, at) == [True, True]


@pytest.mark.parametrize("bits", BITS)
def test_residuals_belong_to_that(two: Ranks, bits: int) -> None:
    assert two.run(_resumes, bits, WARM_UP + 2, False) == [False, False]


# ---- what is refused, and what goes on ----


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3))]


def _stepped(steps: int, warm_up: int) -> QAdamOptimizer:
    optimizer = QAdamOptimizer(_parameters(), warmup_steps=warm_up)
    for _ in range(steps):
        optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        optimizer.step()
    return optimizer


def _late_gradient() -> None:
    optimizer = QAdamOptimizer([*_parameters(), *_parameters()], warmup_steps=1)
    first, second = optimizer.param_groups[0]["params"]
    first.grad = torch.ones(3)
    optimizer.step()
    second.grad = torch.ones(3)
    optimizer.step()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (partial(QAdam, bits=4), ["ValueError", "bits=4", "8 or 1"]),
        (partial(QAdam, bits=1, error_feedback=False), ["ValueError", "error_feedback", "bits=8"]),
        (partial(QAdam, block=100), ["ValueError", "100"]),
        (lambda: QAdamOptimizer(_parameters(), warmup_steps=0), ["ValueError", "warmup_steps=0"]),
        (lambda: QAdamOptimizer(_parameters(), betas=(0.9, 1.0)), ["ValueError", "betas=(0.9, 1.0)"]),
        (lambda: QAdamOptimizer(_parameters(), lr=-1), ["ValueError", "lr=-1"]),
        (
            lambda: _stepped(1, 5).add_param_group({"params": _parameters(), "warmup_steps": 7}),
            ["ValueError", "warmup_steps=7", "same step"],
        ),
        (lambda: _stepped(2, 2).add_param_group({"params": _parameters()}), ["ValueError", "warm-up is over"]),
        (
            lambda: _stepped(0, 2).load_state_dict(torch.optim.Adam(_parameters()).state_dict()),
            ["ValueError", "another optimizer"],
        ),
        (_late_gradient, ["RuntimeError", "(3,)", "warm-up of 1 steps"]),
    ],
)
def test_what_means_nothing_is_refused(what: Callable[[], Any], words: list[str]) -> None:
    refused = refusal(what)
    assert "\n" not in refused
    assert all(word in refused for word in words), refused


def test_a_group_that_comes_in_the_warm_up_is_at_the_same_step() -> None:
    optimizer = _stepped(2, 5)
    optimizer.add_param_group({"params": _parameters(), "lr": 0.5})
    assert [group["steps"] for group in optimizer.param_groups] == [2, 2]


def test_what_is_no_number_does_not_come_to_an_element_without_a_variance() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = QAdamOptimizer([weight], lr=0.1, warmup_steps=1)
    weight.grad = torch.tensor([1.0, 0.0, 1.0, 1.0])
    optimizer.step()
    gradient = torch.tensor([1.0, torch.inf, 1.0, torch.nan])
    formed = gradient.clone()
    optimizer.form(weight, formed, optimizer.param_groups[0])
    assert formed[1] == 0
    assert formed.isfinite().tolist() == [True, True, True, False]
    weight.grad = gradient
    optimizer.step()
    assert weight[1] == 1
    assert weight.isfinite().tolist() == [True, True, True, False]


def test_a_copy_is_in_the_same_phase() -> None:
    optimizer = copy.deepcopy(_stepped(3, 2))
    assert optimizer.steps == 3
    assert not optimizer.is_warming_up


def _of_several_models(here: Here) -> None:
    models = [ddp(here, "bagua_net", net(seed)) for seed in range(2)]
    optimizer = QAdamOptimizer([each for model in models for each in model.parameters()], lr=0.01, warmup_steps=1)
    comms = [attach(model, optimizer, "qadam") for model in models]
    for step in range(3):
        optimizer.zero_grad()
        for model in models:
            backward(here, model, step)
        optimizer.step()
    for model in models:
        assert same_on_all_ranks(here, dict(model.module.named_parameters()))
    backward(here, models[0], 0)
    assert "second backward pass" in refusal(lambda: backward(here, models[0], 0))
    for comm in comms:
        comm.detach()


def test_one_optimizer_trains_several_models(two: Ranks) -> None:
    two.run(_of_several_models)


def _after_another(here: Here) -> None:
    """A model that was trained with ByteGrad goes on with QAdam, and the other way."""
    model = ddp(here, "bagua_net")
    optimizer = QAdamOptimizer(model.parameters(), lr=0.01, warmup_steps=2)
    for algorithm in (ByteGrad(), QAdam(), ByteGrad(), QAdam(bits=1)):
        comm = attach(model, optimizer, algorithm)
        train(here, model, optimizer, range(3))
        comm.detach()
    assert same_on_all_ranks(here, dict(model.module.named_parameters()))
    dist.barrier(group=here.gloo)


def test_qadam_takes_turns_with_others(two: Ranks) -> None:
    two.run(_after_another)
