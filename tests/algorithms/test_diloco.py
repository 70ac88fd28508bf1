# SPDX-License-Identifier: MIT
"""DiLoCo: when the ranks meet, what they have then, what is kept, what is refused, and how it ends."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, DiLoCo, GatheredState, attach
from bagua_net.algorithms._flat import Flat
from bagua_net.algorithms._groups import Groups
from bagua_net.algorithms._sparse import Sparse, SparseAverage
from bagua_net.torch import ProcessGroupBaguaNet
from tests.algorithms.models import backward, ddp, group_of, inside, mean_of, net, same_on_all_ranks
from tests.algorithms.survivor import survivor
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants
from tests.support.traffic import bytes_sent

BACKENDS = variants("bagua_net", nightly=["gloo"])
RATE = 0.05


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE, momentum=0.9)


def _apart(here: Here, backend: str = "bagua_net", model: nn.Module | None = None) -> nn.Module:
    return ddp(here, backend, model, broadcast_buffers=False)


def _step(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(here, model, step)
    optimizer.step()


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in inside(model).named_parameters()}


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in _weights(model).values()])


# ---- when the ranks meet ----


def _meets(here: Here, backend: str, settings: dict[str, Any]) -> list[bool]:
    model = _apart(here, backend)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=3, block=64, **settings))
    equal = []
    for step in range(9):
        _step(here, model, optimizer, step)
        equal.append(same_on_all_ranks(here, _weights(model)))
    comm.detach()
    return equal


@pytest.mark.parametrize("settings", [{}, {"density": 0.1, "bits": 2}, {"density": 0.1}], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_ranks_train_apart_and_have_the_same_bits_after_each_round(
    ranks: Ranks, backend: str, settings: dict[str, Any]
) -> None:
    for equal in ranks.run(_meets, backend, settings):
        assert equal == [False, False, True] * 3


def _equal_elements(here: Here, flat: torch.Tensor) -> torch.Tensor:
    all_of = [torch.empty_like(flat) for _ in range(here.size)]
    dist.all_gather(all_of, flat, group=here.gloo)
    return (torch.stack(all_of) == flat).all(0)


def _meets_in_parts(here: Here, backend: str) -> None:
    """Two fragments, in turn: each is a half of the elements, and the other half stays apart."""
    model = _apart(here, backend)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=4, fragments=2, block=32))
    half = -(-_flat(model).numel() // 2)
    for step in range(1, 9):
        before = comm.stats()
        _step(here, model, optimizer, step)
        equal = _equal_elements(here, _flat(model))
        assert equal[:half].all() == (step % 4 == 0), step
        assert equal[half:].all() == (step % 4 == 2), step
        met = comm.stats()["elements"] - before["elements"]
        assert met == {0: half, 2: len(equal) - half}.get(step % 4, 0)
    comm.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_fragments_meet_one_after_the_other(two: Ranks, backend: str) -> None:
    two.run(_meets_in_parts, backend)


# ---- what they have then ----


def _stands_still(here: Here, dtype: torch.dtype) -> bool:
    """Whether the anchor is the same after a round in which nothing has moved."""
    model = _apart(here, model=net().to(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    comm = attach(model, optimizer, DiLoCo(steps=2))
    state = comm.state_dict()
    between = {name: each.float() * (1 + 2**-12) for name, each in _weights(model).items()}
    comm.load_state_dict({**state, "state": {**state["state"], "anchor": between}})
    for _ in range(2):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
    assert comm.stats()["synchronizations"] == 1
    anchor = comm.state_dict()["state"]["anchor"]
    comm.detach()
    return all(torch.equal(each, anchor[name]) for name, each in between.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_rounding_takes_from_the_anchor_is_no_movement(two: Ranks, dtype: torch.dtype) -> None:
    assert two.run(_stands_still, dtype) == [True, True]


def _moves_the_anchor(here: Here, nesterov: bool) -> None:
    """As torch's SGD does with the mean of what the ranks have moved by."""
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=2, outer_lr=0.5, outer_momentum=0.8, nesterov=nesterov, block=32))
    anchor = nn.Parameter(_flat(model))
    outer = torch.optim.SGD([anchor], 0.5, momentum=0.8, nesterov=nesterov)
    alone = net()
    own = _sgd(alone)
    for round in range(4):
        torch.nn.utils.vector_to_parameters(_flat(model), alone.parameters())
        for step in (2 * round, 2 * round + 1):
            _step(here, model, optimizer, step)
            _step(here, alone, own, step)
        anchor.grad = anchor.detach() - _flat(alone)
        dist.all_reduce(anchor.grad, group=here.gloo)
        anchor.grad /= here.size
        largest = float(anchor.grad.abs().max())
        outer.step()
        assert (_flat(model) - anchor).abs().max() < 0.1 * largest
    comm.detach()


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_outer_step_is_that_of_sgd_with_momentum(two: Ranks, nesterov: bool) -> None:
    two.run(_moves_the_anchor, nesterov)


def _resumes_without_a_pause(here: Here) -> None:
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=3))
    _step(here, model, optimizer, 0)
    before, sent = _weights(model), comm.stats()
    comm.resume()
    assert comm.stats() == sent
    assert all(torch.equal(each, before[name]) for name, each in _weights(model).items())
    comm.detach()


def test_the_end_of_no_pause_changes_nothing(two: Ranks) -> None:
    two.run(_resumes_without_a_pause)


def _begins_apart(here: Here) -> None:
    """Each rank has other weights at first, as after an algorithm that left them so."""
    model = _apart(here)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * here.rank)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=2))
    _step(here, model, optimizer, 0)
    assert not same_on_all_ranks(here, _weights(model))
    _step(here, model, optimizer, 1)
    assert same_on_all_ranks(here, _weights(model))
    comm.detach()


def test_ranks_that_begin_apart_meet(two: Ranks) -> None:
    two.run(_begins_apart)


def _loads_later(here: Here) -> None:
    """Weights that are loaded after the attach, without a state, are not what training has moved them by."""
    model = _apart(here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    comm = attach(model, optimizer, DiLoCo(steps=1))
    untouched = comm.state_dict()
    loaded = {name: torch.full_like(each, 1.0) for name, each in model.module.state_dict().items()}
    model.module.load_state_dict(loaded)
    comm.load_state_dict(untouched)  # of before the first step: it has no anchor
    for step in range(3):
        _step(here, model, optimizer, step)
        assert torch.equal(_flat(model), torch.ones_like(_flat(model)))
    comm.detach()


def test_weights_that_are_loaded_after_the_attach_are_those_to_begin_with(two: Ranks) -> None:
    two.run(_loads_later)


def _one_has_a_state(here: Here) -> str:
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=2))
    _step(here, model, optimizer, 0)
    state = comm.state_dict()
    comm.detach()
    comm = attach(model, optimizer, DiLoCo(steps=2))
    if here.rank == 0:
        comm.load_state_dict(state)
    said = refusal(lambda: _step(here, model, optimizer, 1))
    comm.detach()
    return said


def test_a_state_on_one_rank_only_is_told_at_the_first_step(two: Ranks) -> None:
    for said in two.run(_one_has_a_state):
        assert "1 of 2 ranks have loaded a state; load it on all, or on none" in said, said
        assert "\n" not in said


def test_weights_are_read_and_written_in_parts_whatever_their_type_and_strides() -> None:
    torch.manual_seed(0)
    strided = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    short = nn.Parameter(torch.randn(7).bfloat16())
    flat = Flat({"strided": strided, "short": short})
    whole = flat.read((0, flat.elements))
    assert torch.equal(whole, torch.cat([strided.detach().reshape(-1), short.detach().float()]))
    wanted = whole.clone()
    wanted[20:50] = 2.0  # the end of the one and the beginning of the other
    flat.write((20, 50), wanted[20:50])
    assert torch.equal(flat.read((0, flat.elements)), wanted)
    assert not strided.is_contiguous()
    assert torch.equal(flat.from_names(flat.by_name(whole)), whole)


# ---- the largest elements only ----


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("elements", [1, 63, 64, 1000])
def test_the_largest_elements_of_each_block_are_kept(bits: int, elements: int) -> None:
    x = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    sparse = Sparse(density=0.1, bits=bits, block=64)
    code = sparse.encode(x)
    assert code.numel() == sparse.nbytes(elements)
    decoded = torch.zeros(elements)
    sparse.decode_add(code, decoded)
    for given, got in zip(x.split(64), decoded.split(64), strict=True):
        largest = torch.zeros(len(given), dtype=torch.bool)
        largest[given.abs().topk(min(sparse.kept, len(given))).indices] = True
        assert (got[~largest] == 0).all()
        assert torch.equal(got[largest].sign(), given[largest].sign())
        spread = given[largest].abs()
        # Two levels are off by less than the range of the sizes; codes of more bits, by half a step of the values.
        bound = float(spread.max() - spread.min()) if bits == 2 else float(2 * x.abs().max()) / (2**bits - 1)
        assert (got - given)[largest].abs().max() <= bound / (1 if bits == 2 else 2) + 1e-6
    assert code.numel() < 4 * 0.2 * elements or elements < 1000


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_an_element_that_is_not_finite_is_seen_by_all(bits: int) -> None:
    x = torch.ones(64)
    x[7] = torch.inf
    sparse = Sparse(density=0.1, bits=bits, block=64)
    decoded = torch.zeros(64)
    sparse.decode_add(sparse.encode(x), decoded)
    assert decoded[7].isnan()


def _loses_nothing(here: Here, backend: str) -> None:
    """The averages and the residuals are what the ranks have given."""
    average = SparseAverage(group_of(here, backend), Sparse(density=0.05, bits=2, block=64))
    residual, given, got = torch.zeros(500), torch.zeros(500).double(), torch.zeros(500).double()
    for step in range(20):
        x = torch.randn(500, generator=torch.Generator().manual_seed(100 * step + here.rank))
        given += x
        assert average.average(x, residual) == (here.size - 1) * Sparse(0.05, 2, 64).nbytes(500)
        assert same_on_all_ranks(here, {"x": x})
        got += x
    wanted = mean_of(here, given) - mean_of(here, residual.double())
    assert residual.abs().max() > 0
    assert torch.allclose(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_sent_comes_later(ranks: Ranks, backend: str) -> None:
    ranks.run(_loses_nothing, backend)


# ---- what is sent ----


def _sends_little(here: Here) -> tuple[float, float, float]:
    """Bytes for each element and step: the transport's, the algorithm's, and those of DistributedDataParallel."""
    steps = 60
    sent = []
    for algorithm in (DiLoCo(), None):
        model = DistributedDataParallel(nn.Linear(24, 800), broadcast_buffers=False)
        optimizer = _sgd(model)
        comm = attach(model, optimizer, algorithm) if algorithm else None
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(here.rank))
        for step in range(steps + 2):  # before the first two, DDP's ranks tell each other how buckets are cut
            if step == 2:
                dist.barrier()
                before = bytes_sent()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        sent.append((bytes_sent() - before) / 20000 / steps)
        if comm:
            counted = comm.stats()["bytes"] / 20000 / steps
            comm.detach()
    return sent[0], counted, sent[1]


def test_a_small_part_of_an_all_reduces_bytes_is_sent(ranks: Ranks) -> None:
    for sent, counted, exact in ranks.run(_sends_little):
        assert exact > 7.9 * (ranks.size - 1) / ranks.size
        assert 0 < 20 * sent <= exact
        assert 0 < 20 * counted <= exact


# ---- what is kept ----


def _resumes(here: Here, backend: str, settings: dict[str, Any], loads: bool) -> bool:
    """In the middle of a round. Whether the weights end as those of a run that was not interrupted."""
    how = DiLoCo(steps=4, fragments=2, block=32, **settings)
    model = _apart(here, backend)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, how)
    for step in range(7):
        _step(here, model, optimizer, step)
    file = io.BytesIO()
    torch.save((comm.state_dict(), model.module.state_dict(), optimizer.state_dict()), file)
    for step in range(7, 13):
        _step(here, model, optimizer, step)
    whole = _flat(model)
    comm.detach()
    state, weights, of_optimizer = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    model = _apart(here, backend)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, how)
    model.module.load_state_dict(weights)
    optimizer.load_state_dict(of_optimizer)
    if loads:
        comm.load_state_dict(state)
    for step in range(7, 13):
        _step(here, model, optimizer, step)
    resumed = _flat(model)
    comm.detach()
    return bool(torch.equal(resumed, whole))


@pytest.mark.parametrize("settings", [{"bits": 4}, {"density": 0.1, "bits": 2}], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_is_resumed_within_a_round_ends_as_one_that_was_not(
    two: Ranks, backend: str, settings: dict[str, Any]
) -> None:
    assert two.run(_resumes, backend, settings, True) == [True, True]
    assert two.run(_resumes, backend, settings, False) == [False, False], "the state makes no difference"


def _needs(here: Here, what: str) -> bool:
    """The same with one part of the state as it was at first."""
    how = DiLoCo(steps=3, bits=4, block=32)
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, how)
    for step in range(4):
        _step(here, model, optimizer, step)
    state = comm.state_dict()
    part = state["state"][what]
    state["state"][what] = 0 if what == "step" else {name: torch.zeros_like(each) for name, each in part.items()}
    weights, of_optimizer = copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))
    ends = []
    for loaded in ({}, state):
        if loaded:
            model.module.load_state_dict(weights)
            optimizer.load_state_dict(of_optimizer)
            comm.load_state_dict(loaded)
        for step in range(4, 9):
            _step(here, model, optimizer, step)
        ends.append(_flat(model))
    comm.detach()
    return bool(torch.equal(*ends))


@pytest.mark.parametrize("what", ["anchor", "momentum", "residual", "step"])
def test_each_part_of_the_state_matters(two: Ranks, what: str) -> None:
    assert two.run(_needs, what) == [False, False]


def _in_one_checkpoint(here: Here) -> None:
    """The weights of each rank are in the states of all ranks."""
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=3))
    for step in range(4):
        _step(here, model, optimizer, step)
    of_all = [GatheredState(comm).state_dict()]
    dist.broadcast_object_list(of_all, src=0)
    for step in range(4, 8):
        _step(here, model, optimizer, step)
    whole = _flat(model)
    comm.detach()
    model = _apart(here)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=3))
    GatheredState(comm).load_state_dict(of_all[0])
    for step in range(4, 8):
        _step(here, model, optimizer, step)
    assert torch.equal(_flat(model), whole)
    comm.detach()


def test_a_checkpoint_of_all_ranks_has_their_weights(two: Ranks) -> None:
    two.run(_in_one_checkpoint)


# ---- pause, end ----


def _pauses(here: Here, backend: str) -> None:
    model = _apart(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), RATE)  # without momentum, equal gradients keep weights equal
    comm = attach(model, optimizer, DiLoCo(steps=4))

    def equal_after(step: int) -> bool:
        _step(here, model, optimizer, step)
        return same_on_all_ranks(here, _weights(model))

    assert not equal_after(0)
    own = _flat(model)
    dist.all_reduce(own, group=here.gloo)
    comm.pause()
    assert same_on_all_ranks(here, _weights(model))
    assert torch.allclose(_flat(model), own / here.size, rtol=0, atol=1e-6)
    assert equal_after(1)
    comm.resume()
    assert [equal_after(step) for step in range(2, 6)] == [False, False, True, False]
    comm.detach()
    assert same_on_all_ranks(here, _weights(model))
    assert equal_after(6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pause_and_the_end_leave_equal_weights(two: Ranks, backend: str) -> None:
    two.run(_pauses, backend)


def _outlives(here: Here) -> None:
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("bagua_net diloco")}
    model = _apart(here)
    module, optimizer = model.module, _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=1))
    _step(here, model, optimizer, 0)
    del model
    gc.collect()
    assert comm._context.wrapper() is None
    _step(here, module, optimizer, 1)
    comm.detach()
    left = {thread for thread in threading.enumerate() if thread.name.startswith("bagua_net diloco")} - threads
    for thread in left:
        thread.join(30)
        assert not thread.is_alive()


def test_an_optimizer_that_outlives_the_model_goes_on(two: Ranks) -> None:
    two.run(_outlives)


def _dies(here: Here, backend: str) -> list[str]:
    model = _apart(here, backend)
    optimizer = _sgd(model)
    comm = attach(model, optimizer, DiLoCo(steps=3))
    for step in range(4):
        _step(here, model, optimizer, step)
    here.say(f"trained/{here.rank}")
    if here.rank == 1:
        here.hear("never")
    said = [refusal(partial(_step, here, model, optimizer, step)) for step in range(4, 9)]
    comm.detach()
    return said


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_between_rounds_ends_the_next_one_with_an_error(backend: str) -> None:
    outcome = survivor(_dies, backend)
    assert [said == "accepted" for said in outcome] == [True, False, True, True, False], outcome
    assert "could not meet after step 6: " in outcome[1]
    assert "callback" not in outcome[1]
    assert "rank 1" in outcome[1], outcome
    assert all("\n" not in said for said in outcome)


def _on_host(here: Here) -> None:
    groups = Groups()
    for _ in range(2):
        group = groups.on_host(here.gloo)
        assert isinstance(group, ProcessGroupBaguaNet)
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full((3,), float(here.size)))
        groups.give_back()
    assert groups.on_host(here.gloo) is group, "it is not used again"
    groups.give_back()


def test_whatever_the_models_group_there_is_one_of_bagua_net_for_the_host(two: Ranks) -> None:
    two.run(_on_host)


# ---- what is refused ----


def _attached(model: nn.Module, **arguments: Any) -> AlgorithmHandle:
    return attach(model, _sgd(model), "diloco", **arguments)


def _sends_buffers(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net", nn.Sequential(net(), nn.BatchNorm1d(5)))))


def _scaler(here: Here) -> str:
    return refusal(lambda: _attached(_apart(here), scaler=torch.amp.GradScaler("cpu")))


def _float64(here: Here) -> str:
    return refusal(lambda: _attached(_apart(here, model=nn.Linear(4, 4).double())))


def _other_state(here: Here) -> str:
    comm = _attached(_apart(here))
    state = comm.state_dict()
    state["state"]["momentum"].pop("0.weight")
    said = refusal(lambda: comm.load_state_dict(state))
    comm.detach()
    return said


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_sends_buffers, ["ValueError", "broadcast_buffers=False"]),
        (_scaler, ["ValueError", "GradScaler", "bfloat16"]),
        (_float64, ["ValueError", "float64", "model.float()"]),
        (_other_state, ["ValueError", "0.weight", "no such parameter"]),
    ],
)
def test_what_is_refused_is_refused_in_a_line_that_says_what_to_do(
    two: Ranks, what: Callable[[Here], str], words: list[str]
) -> None:
    for said in two.run(what):
        assert "\n" not in said
        assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("setting", "value", "possible"),
    [
        ("steps", 0, "from 1 on"),
        ("steps", 2.5, "a whole number"),
        ("block", 64.0, "a whole number"),
        ("fragments", 31, "1 to 30"),
        ("outer_lr", 0.0, "more than 0"),
        ("outer_momentum", 1.0, "less than 1"),
        ("bits", 2, "8 or 4"),
        ("density", 0.0, "more than 0"),
    ],
)
def test_a_bad_setting_is_named(setting: str, value: Any, possible: str) -> None:
    said = refusal(lambda: DiLoCo(**{setting: value}))
    assert "\n" not in said
    assert f"{setting}={value}" in said
    assert possible in said
