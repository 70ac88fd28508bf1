# SPDX-License-Identifier: MIT
"""fuse_optimizer: the numbers of the optimizer that was not fused, its checkpoints, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from bagua_net.optim import FlatOptimizer, _bucket, _fuse, fuse_optimizer
from tests.data import optimizers
from tests.data.optimizers import CountedAdam, Lion, TensorAdam, Written, network, train
from tests.support.ranks import Ranks
from tests.support.tiers import variants

if TYPE_CHECKING:
    from tests.support.rank import Here

Make = Callable[[Any], torch.optim.Optimizer]
ALL = pytest.mark.parametrize("kind", optimizers.ALL)


def fused(optimizer: torch.optim.Optimizer) -> FlatOptimizer:
    made = fuse_optimizer(optimizer, elementwise=True)
    assert isinstance(made, FlatOptimizer)
    return made


def same(one: Any, other: Any) -> bool:
    """Bit for bit: elementwise operations do not depend on where an element is."""
    if isinstance(one, torch.Tensor):
        return bool(one.shape == other.shape and torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), its in zip(one.named_parameters(), other.parameters(), strict=True):
        assert same(mine.data, its.data), name


def joined(optimizer: FlatOptimizer) -> int:
    """How many parameters the last step took from flat tensors."""
    return sum(len(bucket.parameters) for bucket in optimizer._all())


# ---- the same numbers ----


@ALL
@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_is_that_of_the_optimizer_alone(kind: type[Written], set_to_none: bool) -> None:
    plain, flat = network(), network()
    one, other = kind(plain.parameters()), fused(kind(flat.parameters()))
    strides = [parameter.stride() for parameter in flat.parameters()]
    train(plain, one, 6, set_to_none=set_to_none)
    train(flat, other, 6, set_to_none=set_to_none)
    assert_same(plain, flat)
    assert joined(other) == len(strides) - 1  # all but the long one
    assert [parameter.stride() for parameter in flat.parameters()] == strides
    assert other.param_groups[0]["params"] == list(flat.parameters())
    assert other.state_dict()["state"].keys() == one.state_dict()["state"].keys()
    assert same(other.state_dict(), one.state_dict())


@ALL
def test_groups_types_and_frozen_parameters(kind: type[Written]) -> None:
    def made() -> tuple[nn.Module, list[dict[str, Any]]]:
        model = network()
        model[3].bfloat16()
        model[3].forward = lambda x, layer=model[3]: nn.functional.linear(
            x.bfloat16(), layer.weight, layer.bias
        ).float()
        model[5].weight.requires_grad_(False)
        groups = [
            {"params": [*model[0].parameters(), *model[3].parameters()], "lr": 1e-3},
            {"params": [*nn.ModuleList(list(model)[4:]).parameters(), model.scale], "decay": 0.0},
        ]
        return model, groups

    (plain, groups), (flat, flat_groups) = made(), made()
    one, other = kind(groups), fused(kind(flat_groups))
    train(plain, one, 4)
    train(flat, other, 4)
    assert_same(plain, flat)
    assert same(other.state_dict(), one.state_dict())


@ALL
def test_schedulers_change_the_settings(kind: type[Written]) -> None:
    """Made before or after, and with a closure."""
    plain, before, after = network(), network(), network()
    one = kind(plain.parameters())
    first = kind(before.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in (one, first)]
    second, third = fused(first), fused(kind(after.parameters()))
    schedulers.append(torch.optim.lr_scheduler.StepLR(third, 1, 0.5))
    for optimizer, model in ((one, plain), (second, before), (third, after)):
        scheduler = schedulers.pop(0)
        for step in range(3):
            train(model, optimizer, 1, seed=step)
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 1e-2 / 8
    assert_same(plain, before)
    assert_same(plain, after)


def test_a_closure_is_called_once() -> None:
    plain, flat = network(), network()
    calls = []

    def closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        calls.append(model)
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3, 8, 8)).square().sum()
        loss.backward()
        return loss

    losses = []
    for model, optimizer in ((plain, Lion(plain.parameters())), (flat, fused(Lion(flat.parameters())))):
        losses.append([optimizer.step(lambda m=model, o=optimizer: closure(m, o)).item() for _ in range(3)])  # type: ignore[misc]
    assert losses[0] == losses[1]
    assert len(calls) == 6
    assert_same(plain, flat)


@ALL
def test_hooks_see_the_parameters(kind: type[Written]) -> None:
    model = network()
    optimizer = fused(kind(model.parameters()))
    seen = []
    optimizer.register_step_pre_hook(lambda hooked, *_: seen.append(list(hooked.param_groups[0]["params"])))
    optimizer.register_step_post_hook(lambda hooked, *_: seen.append(list(hooked.param_groups[0]["params"])))
    train(model, optimizer, 1)
    assert seen == [list(model.parameters())] * 2


@ALL
def test_gradients_that_come_and_go(kind: type[Written], caplog: pytest.LogCaptureFixture) -> None:
    """The optimizer alone skips a parameter without a gradient: neither its value, its state nor its count moves."""

    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step, absent in enumerate(([], [], [0], [0, 6], [6], [], [4, 5, 6, 7, 8], [])):
            generator = torch.Generator().manual_seed(step)
            optimizer.zero_grad()
            for number, parameter in enumerate(model.parameters()):
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if number in absent else gradient
            optimizer.step()

    plain, flat = network(), network()
    one, other = kind(plain.parameters()), fused(kind(flat.parameters()))
    run(plain, one)
    run(flat, other)
    assert_same(plain, flat)
    assert same(other.state_dict(), one.state_dict())
    assert len([record for record in caplog.records if "joins them again" in record.message]) == 1


@ALL
def test_a_parameter_may_be_moved(kind: type[Written]) -> None:
    """As by an average of weights that is swapped in and out, or a model that is loaded."""
    plain, flat = network(), network()
    one, other = kind(plain.parameters()), fused(kind(flat.parameters()))
    for model, optimizer in ((plain, one), (flat, other)):
        train(model, optimizer, 2)
        model[3].bias.data = torch.full((400,), 0.5)
        train(model, optimizer, 2, seed=2)
        model.load_state_dict(network(seed=5).state_dict())
        train(model, optimizer, 2, seed=3)
    assert_same(plain, flat)


def test_a_group_may_be_added() -> None:
    plain, flat = network(), network()
    one, other = CountedAdam(plain[0].parameters()), fused(CountedAdam(flat[0].parameters()))
    for model, optimizer in ((plain, one), (flat, other)):
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 1e-3})
        train(model, optimizer, 2)
    assert_same(plain, flat)
    assert same(other.state_dict(), one.state_dict())


def test_a_group_may_be_added_before_its_parameters_have_gradients() -> None:
    plain, flat = network(), network()
    one, other = CountedAdam(plain[0].parameters()), fused(CountedAdam(flat[0].parameters()))
    for model, optimizer in ((plain, one), (flat, other)):
        model[3].requires_grad_(False)
        train(model, optimizer, 1)
        optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 1e-3})
        train(model, optimizer, 2, seed=2)
        model[3].requires_grad_(True)
        train(model, optimizer, 2, seed=3)
    assert_same(plain, flat)
    assert same(other.state_dict(), one.state_dict())


@pytest.mark.parametrize("stepped", [False, True], ids=["joins", "joined"])
def test_a_graph_from_before_a_step_is_refused_after_it(stepped: bool) -> None:
    """By autograd: its gradients would be of the weights after the step."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    for optimizer in (Lion(model.parameters()), fused(Lion(model.parameters()))):
        if stepped:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        hidden = model[:3](torch.ones(2, 4))
        one, other = model[3:](hidden).sum(), model[3:](hidden).square().sum()
        one.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.backward()


def test_an_error_in_a_step_leaves_the_parameters_in_their_groups() -> None:
    class Failing(Lion):
        def update(self, *arguments: Any) -> None:
            raise RuntimeError("out of memory")

    model = network()
    optimizer = fused(Failing(model.parameters()))
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, optimizer, 1)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert optimizer.inner.param_groups[0]["params"] == list(model.parameters())
    optimizer.state_dict()
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_scaler_skips_a_step_with_infinite_gradients() -> None:
    plain, flat = network(), network()
    for model, optimizer in ((plain, CountedAdam(plain.parameters())), (flat, fused(CountedAdam(flat.parameters())))):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3, 8, 8)).square().sum()
            scaler.scale(loss).backward()
            if step == 1:
                model.scale.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
    assert_same(plain, flat)


def test_long_parameters_are_updated_where_they_are() -> None:
    model = nn.Linear(400, 400)
    optimizer = fused(Lion(model.parameters()))
    model(torch.ones(1, 400)).sum().backward()
    before = model.weight.data_ptr()
    optimizer.step()
    assert model.weight.data_ptr() == before
    assert joined(optimizer) == 0


def test_a_bucket_is_no_longer_than_the_limit() -> None:
    limit = _bucket._LONGEST["cpu"]
    parameters = [nn.Parameter(torch.randn(limit // 4)) for _ in range(10)]
    optimizer = fused(Lion(parameters))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [len(bucket.parameters) for bucket in optimizer._all()] == [4, 4, 2]
    assert max(bucket.flat.numel() for bucket in optimizer._all()) == limit


# ---- checkpoints ----


@ALL
@pytest.mark.parametrize("way", ["to-fused", "from-fused", "fused-to-fused", "into-stepped"])
def test_checkpoints_go_both_ways(kind: type[Written], way: str, tmp_path: Path) -> None:
    reference = network()
    whole = kind(reference.parameters())
    train(reference, whole, 3)
    train(reference, whole, 3, seed=2)

    first, second = network(), network(seed=9)
    one: torch.optim.Optimizer = kind(first.parameters())
    other: torch.optim.Optimizer = kind(second.parameters())
    if way in ("from-fused", "fused-to-fused"):
        one = fused(one)
    if way != "from-fused":
        other = fused(other)
    if way == "into-stepped":
        train(second, other, 2, seed=7)
    train(first, one, 3)
    torch.save({"model": first.state_dict(), "optimizer": one.state_dict()}, tmp_path / "checkpoint")
    loaded = torch.load(tmp_path / "checkpoint", weights_only=True)
    second.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    train(second, other, 3, seed=2)
    assert_same(reference, second)
    assert same(other.state_dict(), whole.state_dict())


def test_an_optimizer_that_was_stepped_may_be_fused() -> None:
    plain, flat = network(), network()
    one, other = TensorAdam(plain.parameters()), TensorAdam(flat.parameters())
    train(plain, one, 3)
    train(flat, other, 3)
    wrapped = fused(other)
    train(plain, one, 3, seed=2)
    train(flat, wrapped, 3, seed=2)
    assert_same(plain, flat)
    assert same(wrapped.state_dict(), one.state_dict())


def test_each_parameter_has_a_count_of_its_own_in_a_state() -> None:
    """Else loading it, which may keep tensors as they are, would make all count each step."""
    model = network()
    optimizer = fused(TensorAdam(model.parameters()))
    train(model, optimizer, 2)
    counts = [state["step"] for state in optimizer.state_dict()["state"].values()]
    assert len({count.data_ptr() for count in counts}) == len(counts) == len(list(model.parameters()))
    assert {float(count) for count in counts} == {2.0}


def test_the_state_is_there_after_a_step() -> None:
    """torch.distributed.checkpoint steps an optimizer that has no state yet."""
    model = network()
    optimizer = fused(TensorAdam(model.parameters()))
    assert not optimizer.state
    train(model, optimizer, 1)
    assert set(optimizer.state) == set(model.parameters())
    assert optimizer.state[model[3].bias]["mean"].shape == (400,)


def test_distributed_checkpoints_have_the_unfused_state() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    plain, flat, third = network(), network(), network()
    one, other, last = (
        kind(model.parameters()) for kind, model in ((TensorAdam, plain), (TensorAdam, flat), (TensorAdam, third))
    )
    other, last = fused(other), fused(last)
    train(plain, one, 2)
    train(flat, other, 2)
    state = get_optimizer_state_dict(flat, other)
    assert same(copy.deepcopy(state), get_optimizer_state_dict(plain, one))
    third.load_state_dict(flat.state_dict())
    set_optimizer_state_dict(third, last, state)
    train(plain, one, 2, seed=2)
    train(third, last, 2, seed=2)
    assert_same(plain, third)


def test_a_fused_optimizer_is_not_copied() -> None:
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(fused(Lion(network().parameters())))


# ---- DDP ----


def train_in_ddp(here: Here, fuse: bool, views: bool) -> list[list[float]]:
    model = network()
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views, bucket_cap_mb=0.01)
    optimizer: torch.optim.Optimizer = CountedAdam(model.parameters())
    optimizer = fused(optimizer) if fuse else optimizer
    generator = torch.Generator().manual_seed(here.rank)
    for _ in range(4):
        optimizer.zero_grad()
        ddp(torch.randn(2, 3, 8, 8, generator=generator)).square().sum().backward()
        optimizer.step()
    return [parameter.flatten().tolist() for parameter in model.parameters()]


@pytest.mark.gate
@pytest.mark.parametrize("views", variants(True, nightly=[False]), ids=["bucket-views", "own-gradients"])
def test_ddp_trains_as_without(ranks: Ranks, views: bool) -> None:
    plain = ranks.run(train_in_ddp, False, views)
    flat = ranks.run(train_in_ddp, True, views)
    assert flat == plain
    assert flat[0] == flat[1]


# ---- torch's own ----


@pytest.fixture(autouse=True)
def _told_anew() -> None:
    _fuse._tell.cache_clear()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (torch.optim.Adam, "fused"),
        (torch.optim.AdamW, "fused"),
        (torch.optim.SGD, "fused"),
        (torch.optim.Adagrad, "fused"),
        (torch.optim.RMSprop, "foreach"),
        (torch.optim.NAdam, "foreach"),
        (torch.optim.RAdam, "foreach"),
        (torch.optim.Adamax, "foreach"),
        (torch.optim.Adadelta, "foreach"),
        (torch.optim.ASGD, "foreach"),
        (torch.optim.Rprop, "foreach"),
        (torch.optim.Adafactor, "foreach"),
    ],
)
@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
def test_torchs_own_implementation_is_turned_on(
    kind: Any, way: str, stepped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plain, flat = network(), network()
    one, other = kind(plain.parameters(), lr=1e-3), kind(flat.parameters(), lr=1e-3)
    if stepped:
        train(plain, one, 2)
        train(flat, other, 2)
    assert fuse_optimizer(other) is other
    assert other.param_groups[0][way] is True
    fuse_optimizer(kind(network().parameters(), lr=1e-3))
    assert len([record for record in caplog.records if f"{way}=True" in record.message]) == 1
    train(plain, one, 3)
    train(flat, other, 3)
    for mine, its in zip(flat.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, its)
    loaded = kind(network().parameters(), lr=1e-3)
    loaded.load_state_dict(other.state_dict())


def test_a_parameter_may_get_its_first_gradient_later() -> None:
    """As after unfreezing a layer. torch's fused SGD with momentum raises there."""
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = fuse_optimizer(torch.optim.SGD([first, second], lr=0.1, momentum=0.9))
    for parameters in ([first], [first, second]):
        optimizer.zero_grad()
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        optimizer.step()
    assert first.tolist() == pytest.approx([1 - 0.1 - 0.19] * 3)
    assert second.tolist() == pytest.approx([1 - 0.1] * 3)


def test_what_its_maker_chose_stays(caplog: pytest.LogCaptureFixture) -> None:
    for setting in ({"foreach": False}, {"foreach": True}, {"fused": True}, {"fused": False}):
        optimizer = torch.optim.AdamW(network().parameters(), **setting)
        settings = [{name: group[name] for name in ("foreach", "fused")} for group in optimizer.param_groups]
        assert fuse_optimizer(optimizer) is optimizer
        assert [{name: group[name] for name in ("foreach", "fused")} for group in optimizer.param_groups] == settings
    assert not caplog.records


def test_groups_that_cannot_be_fused_get_what_they_can() -> None:
    real, complex_ = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = torch.optim.Adam([{"params": [real]}, {"params": [complex_]}])
    fuse_optimizer(optimizer)
    assert [(group["fused"], group["foreach"]) for group in optimizer.param_groups] == [(True, None), (None, True)]
    real.grad, complex_.grad = torch.ones(3), torch.ones(3, dtype=torch.complex64)
    optimizer.step()


def test_a_rate_in_a_tensor_stays_without_foreach() -> None:
    optimizer = torch.optim.RMSprop([nn.Parameter(torch.ones(3))], lr=torch.tensor(0.1))
    assert fuse_optimizer(optimizer).param_groups[0]["foreach"] is None


# ---- refused ----


class Lamb(Lion):
    pass


class FusedLAMB(Lion):
    pass


class DistributedShampoo(Lion):
    pass


class MuonWithAuxAdam(Lion):
    pass


class LarsSGD(Lion):
    pass


class Adafactor2(Lion):
    pass


class Own(Lamb):
    pass


LAYERWISE = (Lamb, FusedLAMB, DistributedShampoo, MuonWithAuxAdam, LarsSGD, Adafactor2, Own)


@pytest.mark.parametrize("kind", [*LAYERWISE, torch.optim.Muon, torch.optim.LBFGS, torch.optim.SparseAdam])
def test_layerwise_optimizers_are_refused_whatever_is_stated(kind: Make) -> None:
    optimizer = kind([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(ValueError, match="cannot be fused: "):
        fuse_optimizer(optimizer, elementwise=True)


def test_other_names_are_not_taken_for_these() -> None:
    for name in ("Lambda", "LambdaAdam", "Samson", "AdamW", "Adam8bit", "Pillars", "Prodigy", "AdaBelief", "Amuondo"):
        kind = type(name, (Lion,), {})
        fused(kind([nn.Parameter(torch.ones(2))]))


def test_others_need_a_statement() -> None:
    with pytest.raises(ValueError, match=r"Lion is not known here: .* elementwise=True"):
        fuse_optimizer(Lion(network().parameters()))


def test_a_state_that_shows_rows_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"'row' has the shape .*: it is not elementwise"):
        train(model, fused(optimizers.Rows(model.parameters())), 1)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="not a Network"):
        fuse_optimizer(network())


def test_a_fused_optimizer_is_fused() -> None:
    optimizer = fused(Lion(network().parameters()))
    assert fuse_optimizer(optimizer) is optimizer


def step_with(*parameters: torch.Tensor) -> None:
    optimizer = fused(Lion(parameters))
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_parameters_that_share_memory_are_refused() -> None:
    whole = torch.ones(8)
    with pytest.raises(ValueError, match=r"parameter 0 .* shares its memory"):
        step_with(nn.Parameter(whole[:4]), nn.Parameter(whole[4:]))
    with pytest.raises(ValueError, match=r"parameter 1 .* shares its memory"):
        step_with(nn.Parameter(whole), nn.Parameter(whole))
    step_with(nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2)))


def test_sparse_gradients_are_refused() -> None:
    parameter, other = nn.Parameter(torch.ones(4, 2)), nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(4, 2).to_sparse()
    with pytest.raises(ValueError, match="sparse gradient"):
        step_with(parameter, other)


def test_parameters_of_another_class_are_refused() -> None:
    class Sharded(nn.Parameter):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="is a Sharded"):
        step_with(Sharded(torch.ones(2)), nn.Parameter(torch.ones(2)))
