# SPDX-License-Identifier: MIT
"""Averages of weights on a thread: nothing of a step is lost, nothing deadlocks, the thread ends."""

from __future__ import annotations

import atexit
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bagua_net.algorithms import AlgorithmHandle, AsyncModelAverage, GatheredState, _async, attach
from tests.algorithms.inside import hold_changes, rounds_fail
from tests.algorithms.models import backward, ddp, same_on_all_ranks
from tests.algorithms.survivor import survivor
from tests.support.between import Case, at_each_step
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).clone()


def _total(here: Here, mine: torch.Tensor) -> torch.Tensor:
    """Over the ranks, in float64."""
    total = mine.double()
    dist.all_reduce(total, group=here.gloo)
    return total


def _model(here: Here, backend: str) -> nn.Module:
    """Ranks differ from the first step on."""
    model = ddp(here, backend, broadcast_buffers=False)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * here.rank)
    return model


def _attached(
    here: Here, backend: str = "gloo", rate: float = 0.05, **settings: Any
) -> tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]:
    model = _model(here, backend)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    return model, optimizer, attach(model, optimizer, AsyncModelAverage(**({"interval_ms": 0} | settings)))


def _step(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, step: int = 0) -> None:
    optimizer.zero_grad()
    backward(here, model, step)
    optimizer.step()


def _train_for(
    here: Here, rounds: int, model: nn.Module, optimizer: torch.optim.Optimizer, comm: AlgorithmHandle
) -> None:
    """Steps until the threads have made so many more rounds: of all ranks the same ones, since a rank that ends first
    ends the others' rounds."""
    made = torch.tensor([comm.stats()["exchanges"]])
    dist.all_reduce(made, dist.ReduceOp.MAX, group=here.gloo)
    for _ in range(2):  # DDP cuts its buckets anew before the second forward pass, and all ranks take part in that
        _step(here, model, optimizer)
    while comm.stats()["exchanges"] < made.item() + rounds:
        _step(here, model, optimizer)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "async rounds" in thread.name]


def _keeps_the_sum(here: Here, backend: str) -> None:
    model, optimizer, comm = _attached(here, backend, rate=0.0)
    before = _total(here, _weights(model))
    _train_for(here, 3, model, optimizer, comm)
    comm.detach()
    assert torch.allclose(_total(here, _weights(model)), before, rtol=0, atol=1e-5)
    spread = (_weights(model) - (before / here.size).float()).abs().max()
    assert spread < 1e-4, "the weights were not averaged"


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_steps_of_the_optimizer_the_sum_over_the_ranks_is_kept(ranks: Ranks, backend: str) -> None:
    ranks.run(_keeps_the_sum, backend)


class _AddsOne(torch.optim.Optimizer):  # type: ignore[misc]
    """A step adds 1 / 64 to every weight, bit by bit exact."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    before = parameter.clone()
                    parameter.copy_(before + 1 / 64)


def _loses_no_step(here: Here) -> None:
    model = _model(here, "gloo")
    optimizer = _AddsOne(model.parameters())
    comm = attach(model, optimizer, AsyncModelAverage(interval_ms=0))
    before = _total(here, _weights(model))
    while comm.stats()["exchanges"] < 10:
        optimizer.step()
    comm.detach()
    steps = _total(here, torch.tensor([float(optimizer.steps)]))
    assert torch.allclose(_total(here, _weights(model)), before + steps / 64, rtol=1e-5, atol=1e-3)


def test_no_step_of_the_optimizer_is_lost(two: Ranks) -> None:
    two.run(_loses_no_step)


def _accumulates(here: Here) -> None:
    model, optimizer, comm = _attached(here)
    for _ in range(3):
        with model.no_sync():
            backward(here, model, 0)
        x = torch.ones(2, 24)
        (model(x) + model(x)).sum().backward()
        optimizer.step()
    _train_for(here, 2, model, optimizer, comm)
    comm.detach()


class _Unlucky(torch.optim.SGD):  # type: ignore[misc]
    fails = False

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        if self.fails:
            raise ArithmeticError("a step")
        return super().step()


def _raises(here: Here) -> None:
    model = _model(here, "gloo")
    optimizer = _Unlucky(model.parameters(), 0.05)
    comm = attach(model, optimizer, AsyncModelAverage(interval_ms=0))
    _train_for(here, 1, model, optimizer, comm)
    refused = refusal(lambda: model(torch.ones(2, 7)))
    assert refused.startswith("RuntimeError")
    assert refusal(lambda: optimizer.step(lambda: model(torch.ones(2, 7)))).startswith("RuntimeError")
    optimizer.fails = True
    assert "a step" in refusal(lambda: _step(here, model, optimizer))
    optimizer.fails = False
    _train_for(here, 2, model, optimizer, comm)
    optimizer.fails = True
    assert "a step" in refusal(lambda: _step(here, model, optimizer))
    comm.detach()
    assert not _threads()


def _pauses(here: Here) -> None:
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    comm.pause()
    assert not _threads()
    exchanges = comm.stats()["exchanges"]
    _step(here, model, optimizer)
    assert same_on_all_ranks(here, {"weights": _weights(model)}), "gradients are not averaged exactly"
    assert comm.stats()["exchanges"] == exchanges
    comm.resume()
    _train_for(here, 2, model, optimizer, comm)
    comm.detach()
    assert not _threads()
    _step(here, model, optimizer)


def _one_has_no_inputs(here: Here) -> None:
    """In an epoch. The other's rounds end with one of both."""
    model, optimizer, comm = _attached(here)
    _train_for(here, 2, model, optimizer, comm)  # DDP cuts its buckets anew, which needs both
    comm.pause()
    comm.resume()
    for _ in range(2):
        if here.rank == 0:
            _step(here, model, optimizer)
        comm.pause()
        assert same_on_all_ranks(here, {"weights": _weights(model)})
        comm.resume()
    if here.rank == 1:
        _step(here, model, optimizer)
    comm.detach()
    assert not _threads()


def _one_loads_before_its_step(here: Here) -> None:
    """The other's rounds end with one of both, and those after the load are of both."""
    model, optimizer, comm = _attached(here)
    _train_for(here, 2, model, optimizer, comm)
    comm.pause()
    state = comm.state_dict()
    comm.resume()
    if here.rank == 0:
        _step(here, model, optimizer)
    comm.load_state_dict(state)
    assert not _threads()
    _train_for(here, 2, model, optimizer, comm)
    comm.detach()


def _nobody_steps(here: Here) -> None:
    model, _, comm = _attached(here)
    comm.pause()
    comm.resume()
    comm.detach()
    assert same_on_all_ranks(here, {"weights": _weights(model)})
    assert not _threads()


def _warms_up(here: Here) -> None:
    model, optimizer, comm = _attached(here, warmup_steps=2)
    for step in range(2):
        _step(here, model, optimizer, step)
        assert same_on_all_ranks(here, {str(n): each.grad for n, each in enumerate(model.parameters())})
        assert not _threads()
    _step(here, model, optimizer)
    assert not same_on_all_ranks(here, {str(n): each.grad for n, each in enumerate(model.parameters())})
    assert _threads()
    assert comm.state_dict()["state"]["steps"] == 3
    here.meet("the first round")  # the first rank to detach ends all threads
    comm.detach()


def _one_ends_first(here: Here) -> None:
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    if here.rank == 0:
        comm.detach(synchronize=False)
        here.say("detached")
    here.hear("detached")  # the other one has called nothing
    if here.rank != 0:
        _step(here, model, optimizer)
        comm.detach(synchronize=False)
    assert not _threads()


class _Warnings(logging.Handler):
    """Of the algorithms, while it is a context."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("bagua_net.algorithms").addHandler(self)
        return self.said

    def __exit__(self, *_: Any) -> None:
        logging.getLogger("bagua_net.algorithms").removeHandler(self)


def _one_pauses_first(here: Here) -> None:
    """The others train on, are told so once, and pause when they like."""
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    here.meet("trained")
    with _Warnings() as said:
        if here.rank == 0:
            while _threads():  # until the other one pauses
                _step(here, model, optimizer)
            for _ in range(3):
                _step(here, model, optimizer)
        comm.pause()
        assert len(said) == (1 if here.rank == 0 else 0), said
    assert all("rank 1 stopped averaging weights" in each for each in said)
    assert same_on_all_ranks(here, {"weights": _weights(model)})
    comm.resume()
    _train_for(here, 2, model, optimizer, comm)
    comm.detach()


def _one_fails(here: Here, where: str) -> None:
    """What fails on one rank alone ends the rounds of all, and nobody waits. After a pause they go on."""
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    here.meet("trained")
    failed = "accepted"
    with rounds_fail(comm, where) if here.rank == 1 else nullcontext():
        while failed == "accepted":
            failed = refusal(lambda: _step(here, model, optimizer))
    assert failed.startswith("RuntimeError: bagua_net.algorithms: averaging weights beside training has failed")
    assert ("of a copy" if here.rank == 1 else "on rank 1") in failed, failed
    assert refusal(lambda: _step(here, model, optimizer)) == failed
    comm.pause()
    assert not _threads()
    comm.resume()
    _train_for(here, 2, model, optimizer, comm)
    comm.detach()


@pytest.mark.parametrize("where", ["copy", "add"])
def test_what_fails_on_one_rank_alone_is_raised_on_all(two: Ranks, where: str) -> None:
    two.run(_one_fails, where)


def _refused(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    return refusal(lambda: _step(here, model, optimizer))


def _one_drops_its_model(here: Here) -> None:
    """As an error in its training loop does."""
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    here.meet("trained")
    if here.rank == 1:
        del model, optimizer, comm
        gc.collect()
        here.hear("raised")
        return
    while _threads():
        _refused(here, model, optimizer)
    failed = _refused(here, model, optimizer)
    here.say("raised")
    assert failed.startswith("RuntimeError: bagua_net.algorithms: averaging weights beside training has ended: rank 1 ")
    comm.detach()


def _resumes(here: Here) -> None:
    """After the warm-up. A load in the middle of training ends the rounds, which would change what was loaded."""
    model, optimizer, comm = _attached(here, warmup_steps=2)
    _train_for(here, 1, model, optimizer, comm)
    state = GatheredState(comm).state_dict()
    states = [state]
    dist.broadcast_object_list(states, src=0, group=here.gloo)
    own = states[0]["ranks"][here.rank]
    saved = torch.cat([own["weights"][name].reshape(-1) for name, _ in model.module.named_parameters()])
    steps = own["state"]["state"]["steps"]
    assert steps > 2
    for _ in range(2):  # in the middle of training, and anew
        _step(here, model, optimizer)
        GatheredState(comm).load_state_dict(states[0])
        assert not _threads()
        assert torch.equal(_weights(model), saved)
        assert comm.state_dict()["state"]["steps"] == steps
        _step(here, model, optimizer)
        assert not same_on_all_ranks(here, {str(n): each.grad for n, each in enumerate(model.parameters())})
        _train_for(here, 2, model, optimizer, comm)
        comm.detach()
        model, optimizer, comm = _attached(here, warmup_steps=2)
    comm.detach()


def _rolls_back(here: Here) -> None:
    """Weights are loaded while a round has not yet added the change of the old ones, which are spoilt."""
    model, optimizer, comm = _attached(here)
    changed = threading.Event()
    hold_changes(comm, lambda change: bool(change.isnan().any()), changed.set)  # on all ranks in the same round
    _train_for(here, 1, model, optimizer, comm)
    state, weights = comm.state_dict(), {name: each.clone() for name, each in model.module.state_dict().items()}
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    changed.wait()
    model.module.load_state_dict(weights)
    comm.load_state_dict(state)
    assert all(torch.equal(each, weights[name]) for name, each in model.module.state_dict().items())
    _train_for(here, 1, model, optimizer, comm)
    comm.detach()


def _resumes_in_the_warm_up(here: Here) -> None:
    """Its steps are exact, so that a resumed run has the same bits."""
    model, optimizer, comm = _attached(here, warmup_steps=4)
    for step in range(2):
        _step(here, model, optimizer, step)
    state, weights = comm.state_dict(), _weights(model)
    for step in range(2, 4):
        _step(here, model, optimizer, step)
    want = _weights(model)
    comm.detach()
    model, optimizer, comm = _attached(here, warmup_steps=4)
    nn.utils.vector_to_parameters(weights, model.parameters())
    comm.load_state_dict(state)
    for step in range(2, 4):
        _step(here, model, optimizer, step)
        assert not _threads()
    assert torch.equal(_weights(model), want)
    _step(here, model, optimizer)
    assert _threads(), "it warms up again"
    here.meet("the first round")
    comm.detach()


def _is_dropped(here: Here) -> None:
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    (thread,) = [each for each in threading.enumerate() if "async rounds" in each.name]
    here.meet("trained")
    del model, optimizer, comm
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def _raises_and_is_dropped(here: Here) -> None:
    """In the middle of a step, which holds up the thread."""
    model = _model(here, "gloo")
    optimizer = _Unlucky(model.parameters(), 0.05)
    comm = attach(model, optimizer, AsyncModelAverage(interval_ms=0))
    _train_for(here, 1, model, optimizer, comm)
    here.meet("trained")
    (thread,) = [each for each in threading.enumerate() if "async rounds" in each.name]
    optimizer.fails = True
    assert "a step" in _refused(here, model, optimizer)
    here.meet("raised")
    del model, optimizer, comm
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.gate
@pytest.mark.parametrize(
    "what",
    [
        _accumulates,
        _raises,
        _pauses,
        _one_has_no_inputs,
        _one_loads_before_its_step,
        _nobody_steps,
        _warms_up,
        _one_ends_first,
        _one_pauses_first,
        _one_drops_its_model,
        _resumes,
        _rolls_back,
        _resumes_in_the_warm_up,
        _is_dropped,
        _raises_and_is_dropped,
    ],
)
def test_nothing_waits_for_ever(two: Ranks, what: Callable[[Here], None]) -> None:
    two.run(what)


def _settings(here: Here) -> str:
    return refusal(lambda: AsyncModelAverage(interval_ms=-1))


def _scaler(here: Here) -> str:
    model = _model(here, "gloo")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return refusal(lambda: attach(model, optimizer, "async", scaler=torch.amp.GradScaler("cpu")))


def _finds_unused(here: Here) -> str:
    model = ddp(here, "gloo", broadcast_buffers=False, find_unused_parameters=True)
    return refusal(lambda: attach(model, torch.optim.SGD(model.parameters(), 0.1), "async"))


@pytest.mark.parametrize(
    ("what", "word"),
    [(_settings, "interval_ms=-1"), (_scaler, "GradScaler"), (_finds_unused, "find_unused_parameters=True")],
)
def test_what_is_refused(two: Ranks, what: Callable[[Here], str], word: str) -> None:
    for refused in two.run(what):
        assert refused.startswith("ValueError"), refused
        assert word in refused, refused
        assert "\n" not in refused


def _dies(here: Here, backend: str) -> str:
    model, optimizer, comm = _attached(here, backend)
    _train_for(here, 1, model, optimizer, comm)
    here.say(f"trained/{here.rank}")
    failed = "accepted"
    while failed == "accepted":  # until the other one is gone
        failed = refusal(lambda: _step(here, model, optimizer))
    comm.detach()
    assert not _threads()
    return failed


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_ends_the_other_with_an_error(backend: str) -> None:
    said = survivor(_dies, backend)
    assert "averaging weights beside training has failed" in said


def _ends_by_an_error(here: Here) -> str:
    model, optimizer, comm = _attached(here)
    _train_for(here, 1, model, optimizer, comm)
    here.meet("before the end")  # it would end the other's training
    if here.rank == 1:
        atexit._run_exitfuncs()  # what an interpreter does after an error, and the model is still there
        enough = comm.stats()["exchanges"] + 2
        while _threads() and comm.stats()["exchanges"] < enough:
            _step(here, model, optimizer)
    here.say(f"trained/{here.rank}")
    while _threads():
        _refused(here, model, optimizer)
    failed = _refused(here, model, optimizer)
    comm.detach()
    return failed


@pytest.mark.nightly
def test_a_process_that_ends_by_an_error_ends_the_other_with_one() -> None:
    said = survivor(_ends_by_an_error)
    assert "averaging weights beside training has ended: rank 1 ended, or dropped the model, without pause()" in said


# ---- the thread of the rounds, whose model is dropped at any step ----


def _rounds(interval: float) -> _async._Rounds:
    nobody: Any = None
    return _async._Rounds(nobody, torch.device("cpu"), interval)


def dropped_at_each_step_of_a_pause(here: Here) -> int:
    """By a finalizer, on that very thread."""

    def case() -> Case:
        rounds = _rounds(0.01)
        return Case(rounds._pause, rounds.drop, rounds._pause)

    return at_each_step([_async, threading], case, in_handler=True)


def test_a_finalizer_in_a_pause_drops_the_model(two: Ranks) -> None:
    assert min(two.run(dropped_at_each_step_of_a_pause, seconds=20)) >= 1


def test_a_dropped_model_is_not_taken_for_one_that_has_stopped() -> None:
    def case() -> Case:
        rounds, told = _rounds(0.0), list[_async._Status]()

        def tell() -> None:
            told.append(rounds._status())

        def check() -> None:
            tell()
            assert told[0] in (_async._Status.GOES_ON, _async._Status.IS_DROPPED)
            assert told[1] is _async._Status.IS_DROPPED

        return Case(tell, rounds.drop, check)

    assert at_each_step([_async, threading], case) >= 1
