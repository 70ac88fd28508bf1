# SPDX-License-Identifier: MIT
"""What holds of every algorithm with which the ranks train apart: which parameters it averages, and what is a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import (
    Algorithm,
    AlgorithmHandle,
    AsyncModelAverage,
    Decentralized,
    DiLoCo,
    GatheredState,
    LowPrecisionDecentralized,
    attach,
)
from bagua_net.algorithms._context import trained_parameters
from tests.algorithms.models import WIDTH, backward, ddp, mean_of, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal

#: Rounds of "async" come by the clock: the first one begins with the first step, and the last one with pause().
ALGORITHMS: list[Algorithm] = [
    Decentralized(),
    Decentralized(peers="shift_one"),
    LowPrecisionDecentralized(block=64),
    AsyncModelAverage(interval_ms=3_600_000),
    DiLoCo(steps=2, block=64),
]
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
RATE = 0.05


def _step(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(here, model, step)
    optimizer.step()


def _steps_of(comm: AlgorithmHandle) -> int:
    state = comm.state_dict()["state"]
    return int(state["step"] if comm.algorithm.name == "diloco" else state["steps"])


# ---- parameters ----


def _two_optimizers(here: Here, algorithm: Algorithm) -> str:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    matrices = [each for each in model.parameters() if each.dim() == 2]
    return refusal(lambda: attach(model, torch.optim.SGD(matrices, RATE), algorithm))


@each_algorithm
def test_an_optimizer_of_some_parameters_is_refused(two: Ranks, algorithm: Algorithm) -> None:
    for said in two.run(_two_optimizers, algorithm):
        assert said.startswith("ValueError"), said
        assert "the optimizer has not the parameter 0.bias" in said, said
        assert "\n" not in said


class _Experts(nn.Module):  # type: ignore[misc]
    """Each rank has an expert of its own."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.common, self.expert = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        with torch.no_grad():
            self.expert.weight.fill_(0.1 * rank)
            self.expert.bias.fill_(0.1 * rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(self.common(x))


def _ignores(here: Here, algorithm: Algorithm) -> None:
    made = _Experts(here.rank)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(made, ["expert.weight", "expert.bias"])
    model = ddp(here, "bagua_net", made, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    comm = attach(model, optimizer, algorithm)
    for step in range(2):
        _step(here, model, optimizer, step)
    comm.pause()
    assert same_on_all_ranks(here, {"common": made.common.weight})
    assert (made.expert.weight - 0.1 * here.rank).abs().max() < 0.04
    states = [GatheredState(comm).state_dict()]
    dist.broadcast_object_list(states, src=0, group=here.gloo)
    kept = made.expert.weight.detach().clone()
    with torch.no_grad():
        made.expert.weight.zero_()
    GatheredState(comm).load_state_dict(states[0])
    assert torch.equal(made.expert.weight, kept)
    comm.detach()


@each_algorithm
def test_parameters_that_ddp_ignores_stay_each_ranks_own(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_ignores, algorithm)


class _OfItself(nn.Module):  # type: ignore[misc]
    """A parameter of its own, and one that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x * self.scale)))


def test_parameters_are_ignored_where_ddp_ignores_them() -> None:
    made = _OfItself()
    assert "scale" in trained_parameters(made, ["scale"])
    assert "scale" not in trained_parameters(made, [".scale"])
    assert "first.weight" in trained_parameters(made, ["first.weight"])
    assert "first.weight" not in trained_parameters(made, ["first.weight", "second.weight"])
    assert "last.weight" not in trained_parameters(made, ["last.weight"])


def _thaws(here: Here, algorithm: Algorithm) -> str:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    frozen = model.module[0].weight
    frozen.requires_grad_(False)
    comm = attach(model, torch.optim.SGD(model.parameters(), RATE), algorithm)
    frozen.requires_grad_(True)
    said = refusal(lambda: backward(here, model, 0))
    comm.detach()
    return said


@each_algorithm
def test_a_parameter_that_was_frozen_at_the_attach_is_named(two: Ranks, algorithm: Algorithm) -> None:
    for said in two.run(_thaws, algorithm):
        assert "the parameter 0.weight required no gradient when the algorithm was attached" in said, said


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.module.named_parameters()}


def _step_by_hand(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Without DDP, which would wait for the gradient of a parameter that is frozen."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1 * (1 + here.rank)) if parameter.requires_grad else None
    optimizer.step()


def _freezes(here: Here, on_both: bool) -> None:
    """Within a round: what was trained before counts. From the next round on, momentum would move it for long."""
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    comm = attach(model, optimizer, DiLoCo(steps=2, block=32))
    for step in range(4):
        _step(here, model, optimizer, step)
    frozen = model.module[0].weight
    met = _weights(model)
    _step_by_hand(here, model, optimizer)
    if on_both or here.rank == 0:
        frozen.requires_grad_(False)
    _step_by_hand(here, model, optimizer)
    ends = [_weights(model)]
    for _ in range(2):
        for _ in range(2):
            _step_by_hand(here, model, optimizer)
        ends.append(_weights(model))
    assert not torch.equal(ends[0]["0.weight"], met["0.weight"])
    assert torch.equal(ends[2]["0.weight"], ends[0]["0.weight"]) == on_both
    assert not torch.equal(ends[2]["3.weight"], ends[0]["3.weight"])
    assert all(same_on_all_ranks(here, each) for each in ends)
    comm.detach()


@pytest.mark.parametrize("on_both", [True, False])
def test_a_parameter_that_was_frozen_on_all_ranks_stays_where_it_was(two: Ranks, on_both: bool) -> None:
    two.run(_freezes, on_both)


# ---- steps ----


class _WithBase(torch.optim.SGD):  # type: ignore[misc]
    """Its step is more than its base's, whose hooks torch calls as well."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss: float | None = super().step(closure)
        return loss


def _counts(here: Here, algorithm: Algorithm) -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], RATE)  # from now on, torch calls hooks in SGD.step
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = _WithBase(model.parameters(), RATE)
    called: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: called.append(None))
    comm = attach(model, optimizer, algorithm)
    for step in range(3):
        _step(here, model, optimizer, step)
        assert len(called) == 2 * (step + 1), "the optimizer does not call hooks twice"
        assert _steps_of(comm) == step + 1
    optimizer.step(lambda: 0.0)
    assert _steps_of(comm) == 4
    comm.detach()


@each_algorithm
def test_a_step_within_a_step_counts_once(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_counts, algorithm)


class _Around(torch.optim.Optimizer):  # type: ignore[misc]
    """A wrapper: its step is that of another optimizer of the same parameters."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        super().__init__([each for group in inside.param_groups for each in group["params"]], {})
        self.inside = inside

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss: float | None = self.inside.step(closure)
        return loss


def _wraps(here: Here, algorithm: Algorithm) -> None:
    ways: tuple[Callable[[_Around], torch.optim.Optimizer], ...]
    ways = (lambda wrapper: wrapper, lambda wrapper: wrapper.inside)
    for attached_to in ways:
        model = ddp(here, "bagua_net", broadcast_buffers=False)
        wrapper = _Around(torch.optim.SGD(model.parameters(), RATE))
        comm = attach(model, attached_to(wrapper), algorithm)
        for step in range(3):
            _step(here, model, wrapper, step)
        assert _steps_of(comm) == 3
        comm.detach()


@each_algorithm
def test_an_optimizer_may_step_another_one(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_wraps, algorithm)


def _steps_with_another(here: Here, algorithm: Algorithm) -> str:
    """After some steps of the one that was attached. In a pause gradients are averaged, and any may step."""
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer, other = (torch.optim.SGD(model.parameters(), RATE) for _ in range(2))
    comm = attach(model, optimizer, algorithm)
    for step in range(2):
        _step(here, model, optimizer, step)
    unrelated = torch.optim.SGD([nn.Parameter(torch.ones(1))], RATE)
    for _ in range(2):
        unrelated.step()
    said = refusal(lambda: _step(here, model, other, 2))
    comm.pause()
    _step(here, model, other, 3)
    assert same_on_all_ranks(here, _weights(model))
    comm.detach()
    _step(here, model, other, 4)
    return said


@each_algorithm
def test_a_step_of_another_optimizer_is_refused(two: Ranks, algorithm: Algorithm) -> None:
    for said in two.run(_steps_with_another, algorithm):
        assert "another optimizer (SGD) has changed the parameter 0.weight" in said, said
        assert "attach with the optimizer that trains the model" in said, said
        assert "\n" not in said


class _Unlucky(_WithBase):
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        super().step(closure)
        raise ArithmeticError("no such luck")


def _counts_after_one_that_raised(here: Here, algorithm: Algorithm) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = _Unlucky(model.parameters(), RATE)
    comm = attach(model, optimizer, algorithm)
    for step in range(2):
        assert refusal(lambda: _step(here, model, optimizer, step)) == "ArithmeticError: no such luck"  # noqa: B023
    optimizer.__class__ = _WithBase
    before = _steps_of(comm)
    _step(here, model, optimizer, 2)
    assert _steps_of(comm) == before + 1
    comm.detach()


@each_algorithm
def test_a_step_after_one_that_raised_counts(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_counts_after_one_that_raised, algorithm)


# ---- weights that somebody changes ----


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _changed_on_the_way(here: Here) -> list[str]:
    handler = _Lines()
    logging.getLogger("bagua_net.algorithms").handlers[:] = [handler]
    model = ddp(here, "bagua_net", _Scaling(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    comm = attach(model, optimizer, "decentralized")
    good = {name: each.clone() for name, each in model.module.state_dict().items()}
    for step in range(3):
        _step(here, model, optimizer, step)
    assert handler.lines == [], "an embedding that scales its rows is none of the user's changes"
    for step in range(2):
        backward(here, model, step)
        model.module.load_state_dict(good)
        optimizer.step()
    backward(here, model, 1)
    comm.load_state_dict(comm.state_dict())
    model.module.load_state_dict(good)
    optimizer.zero_grad()
    optimizer.step()  # without an average of older weights
    assert all(torch.allclose(each, good[name]) for name, each in model.module.state_dict().items())
    comm.detach()
    return handler.lines


class _Scaling(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.out = nn.Embedding(2, WIDTH, max_norm=0.1), nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.rows((x[:, 0] > 0).long()))


def test_weights_that_change_while_their_average_is_on_its_way_are_warned_of(two: Ranks) -> None:
    for said in two.run(_changed_on_the_way):
        assert len(said) == 1, said
        assert "comm.load_state_dict before model.load_state_dict" in said[0]


def _loads_later(here: Here, in_a_pause: bool) -> None:
    """Without replicas of its own, a state says nothing of the weights: they are as they were loaded."""
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    comm = attach(model, optimizer, LowPrecisionDecentralized(bits=4, block=64))
    untouched = comm.state_dict()
    _step(here, model, optimizer, 0)
    if in_a_pause:
        comm.pause()
    state = comm.state_dict() if in_a_pause else untouched
    if in_a_pause:
        comm.resume()
    assert state["state"].keys() == {"steps"}
    with torch.no_grad():
        loaded = {name: torch.randn_like(each) for name, each in model.module.state_dict().items()}
    loaded = {name: mean_of(here, each) for name, each in loaded.items()}
    model.module.load_state_dict(loaded)
    comm.load_state_dict(state)
    for step in range(2):
        _step(here, model, optimizer, step)
        for name, each in model.module.state_dict().items():
            assert torch.allclose(each, loaded[name].float(), rtol=0, atol=1e-6), name
    comm.detach()


@pytest.mark.parametrize("in_a_pause", [False, True])
def test_weights_that_are_loaded_after_the_attach_are_exact(two: Ranks, in_a_pause: bool) -> None:
    two.run(_loads_later, in_a_pause)


def _loaded_on_one(here: Here) -> str:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    comm = attach(model, optimizer, LowPrecisionDecentralized(block=64))
    _step(here, model, optimizer, 0)
    if here.rank == 0:
        comm.load_state_dict(comm.state_dict())
    else:
        comm.load_state_dict({**comm.state_dict(), "state": {"steps": 1}})
    said = refusal(lambda: _step(here, model, optimizer, 1))
    comm.detach()
    return said


def test_replicas_on_one_rank_only_are_told_at_the_next_step(two: Ranks) -> None:
    for said in two.run(_loaded_on_one):
        assert "1 of 2 ranks have loaded a state; load it on all, or on none" in said, said


def _loads_a_copy(here: Here) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    comm = attach(model, optimizer, "decentralized")
    _step(here, model, optimizer, 0)
    states = [GatheredState(comm).state_dict()]
    dist.broadcast_object_list(states, src=0, group=here.gloo)
    before = deepcopy(states[0])
    GatheredState(comm).load_state_dict(states[0])
    _step(here, model, optimizer, 1)
    was, now = (state["ranks"][here.rank]["optimizer"]["state"] for state in (before, states[0]))
    assert all(torch.equal(now[number]["momentum_buffer"], was[number]["momentum_buffer"]) for number in was)
    comm.detach()


def test_a_state_can_be_loaded_again(two: Ranks) -> None:
    """Training does not change what it was loaded from."""
    two.run(_loads_a_copy)


# ---- weights that are equal ----


def _weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in model.named_parameters()}


def _synchronizes(here: Here, algorithm: Algorithm) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    comm = attach(model, optimizer, algorithm)
    for step in range(3):  # DiLoCo's ranks have met after two
        _step(here, model, optimizer, step)
    assert not same_on_all_ranks(here, _weights_of(model))
    here.meet("apart")  # the first rank to synchronize ends the rounds of "async" on all
    comm.synchronize()
    assert same_on_all_ranks(here, _weights_of(model))
    for step in range(2):  # and not three, after which DiLoCo's ranks meet
        _step(here, model, optimizer, step)
    assert not same_on_all_ranks(here, _weights_of(model)), "the algorithm goes on"
    here.meet("apart again")
    comm.detach()
    assert same_on_all_ranks(here, _weights_of(model))


@each_algorithm
def test_weights_are_equal_after_synchronize_and_detach(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_synchronizes, algorithm)


def _synchronizes_in_a_pause(here: Here, algorithm: Algorithm) -> None:
    """Gradients are averaged exactly there, and each rank adds its own momentum."""
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    comm = attach(model, optimizer, algorithm)
    for step in range(3):
        _step(here, model, optimizer, step)
    here.meet("apart")
    comm.pause()
    for end in (comm.synchronize, comm.detach):
        _step(here, model, optimizer, 3)
        assert not same_on_all_ranks(here, _weights_of(model))
        end()
        assert same_on_all_ranks(here, _weights_of(model))


@each_algorithm
def test_weights_are_equal_after_synchronize_and_detach_in_a_pause(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_synchronizes_in_a_pause, algorithm)


def _leaves_them(here: Here, algorithm: Algorithm) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    comm = attach(model, optimizer, algorithm)
    for step in range(3):
        _step(here, model, optimizer, step)
    before = {name: each.clone() for name, each in _weights_of(model).items()}
    here.meet("apart")
    if here.rank == 0:
        comm.detach(synchronize=False)  # alone
        here.say("detached")
    here.hear("detached")
    comm.detach(synchronize=False)
    assert all(torch.equal(each, before[name]) for name, each in _weights_of(model).items())


@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if each.name != "async"], ids=repr)
def test_a_rank_can_detach_alone(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_leaves_them, algorithm)
