# SPDX-License-Identifier: MIT
"""Decentralized averages of weights: what a step makes of them, when they are sent, what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bagua_net.algorithms import (
    Algorithm,
    AlgorithmHandle,
    AsyncModelAverage,
    Decentralized,
    GatheredState,
    LowPrecisionDecentralized,
    attach,
)
from bagua_net.algorithms._decentralized import peer_of
from tests.algorithms.models import backward, batch, ddp, same_on_all_ranks
from tests.algorithms.survivor import survivor
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
RATE = 0.05


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).clone()


def _gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.grad.reshape(-1) for each in model.parameters()]).clone()


def _of_all(here: Here, mine: torch.Tensor) -> torch.Tensor:
    """Shape (ranks, elements)."""
    rows = [torch.empty_like(mine) for _ in range(here.size)]
    dist.all_gather(rows, mine, group=here.gloo)
    return torch.stack(rows)


def _attached(here: Here, backend: str, algorithm: Any) -> tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]:
    model = ddp(here, backend, broadcast_buffers=False)
    with torch.no_grad():  # ranks that differ from the first step on
        for each in model.parameters():
            each.add_(0.01 * here.rank)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    return model, optimizer, attach(model, optimizer, algorithm)


def _step(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(here, model, step)
    optimizer.step()


def _mixed(here: Here, peers: str, step: int, before: torch.Tensor) -> torch.Tensor:
    if peers == "all":
        return before.mean(0)
    return (before[here.rank] + before[peer_of(here.rank, step, here.size)]) / 2


def _averages(here: Here, backend: str, peers: str) -> None:
    model, optimizer, comm = _attached(here, backend, Decentralized(peers=peers))  # type: ignore[arg-type]
    for step in range(4):
        before = _of_all(here, _weights(model))
        _step(here, model, optimizer, step)
        want = _mixed(here, peers, step, before) - RATE * _gradients(model)
        assert torch.allclose(_weights(model), want, rtol=0, atol=1e-6)
        assert not same_on_all_ranks(here, {"gradient": _gradients(model)}), "gradients were averaged"
    assert comm.stats()["exchanges"] == 4
    comm.detach()


@pytest.mark.parametrize("peers", ["all", "shift_one"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_starts_from_the_average_with_the_gradient_at_the_own_weights(
    four: Ranks, backend: str, peers: str
) -> None:
    four.run(_averages, backend, peers)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_peers_are_pairs_and_change(size: int) -> None:
    for step in range(size):
        peers = [peer_of(rank, step, size) for rank in range(size)]
        assert all(peers[peers[rank]] == rank != peers[rank] for rank in range(size))
    assert len({peer_of(0, step, size) for step in range(size)}) == size // 2


def _once_in_a_step(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo", Decentralized(interval=2))
    x = torch.ones(2, 24)
    model.eval()
    model(x)
    model.train()
    with torch.no_grad():
        model(x)
    assert comm.stats()["exchanges"] == 0
    for _ in range(4):
        with model.no_sync():
            model(x).sum().backward()
        (model(x) + model(x)).sum().backward()
        optimizer.step()
    assert comm.stats()["exchanges"] == 2
    comm.detach()
    _step(here, model, optimizer, 0)
    assert same_on_all_ranks(here, {"gradient": _gradients(model)}), "DDP does not average again"


def _in_a_closure(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo", "decentralized")
    before = _of_all(here, _weights(model))

    def closure() -> float:
        optimizer.zero_grad()
        backward(here, model, 0)
        return 0.0

    optimizer.step(closure)
    assert torch.allclose(_weights(model), before.mean(0) - RATE * _gradients(model), rtol=0, atol=1e-6)
    comm.detach()


def _pauses(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo", "decentralized")
    _step(here, model, optimizer, 0)
    assert not same_on_all_ranks(here, {"weights": _weights(model)})
    comm.pause()
    _step(here, model, optimizer, 1)
    assert same_on_all_ranks(here, {"weights": _weights(model)})
    comm.resume()
    _step(here, model, optimizer, 2)
    assert not same_on_all_ranks(here, {"weights": _weights(model)})
    comm.detach()


def _resumes(here: Here) -> None:
    """shift_one goes on with the peer whose turn it is."""
    model, optimizer, comm = _attached(here, "gloo", Decentralized(peers="shift_one"))
    _step(here, model, optimizer, 0)
    state, weights = comm.state_dict(), _weights(model)
    _step(here, model, optimizer, 1)
    want = _weights(model)
    comm.detach()
    model, optimizer, comm = _attached(here, "gloo", Decentralized(peers="shift_one"))
    nn.utils.vector_to_parameters(weights, model.parameters())
    comm.load_state_dict(state)
    _step(here, model, optimizer, 1)
    assert torch.equal(_weights(model), want)
    comm.detach()


@pytest.mark.parametrize("what", [_once_in_a_step, _in_a_closure, _pauses, _resumes])
def test_what_training_does_besides_plain_steps(four: Ranks, what: Callable[[Here], None]) -> None:
    four.run(what)


def _odd(here: Here) -> str:
    refused = refusal(lambda: _attached(here, "gloo", Decentralized(peers="shift_one"))[2].detach())
    return "" if here.size % 2 == 0 and refused == "accepted" else refused


def test_an_odd_number_of_ranks_is_refused(ranks: Ranks) -> None:
    for refused in filter(None, ranks.run(_odd)):
        assert refused.startswith("ValueError"), refused
        assert "even" in refused, refused
        assert "\n" not in refused


def _of_another_model(here: Here) -> str:
    """It is refused before anything of it is taken."""
    model, optimizer, comm = _attached(here, "gloo", Decentralized())
    _step(here, model, optimizer, 0)
    state = [GatheredState(comm).state_dict()]
    dist.broadcast_object_list(state, src=0)
    comm.detach()
    other = ddp(here, "gloo", nn.Linear(3, 3), broadcast_buffers=False)
    comm = attach(other, torch.optim.SGD(other.parameters(), RATE), Decentralized())
    before = _weights(other)
    refused = refusal(lambda: GatheredState(comm).load_state_dict(state[0]))
    assert comm.state_dict()["state"] == {"steps": 0}
    assert torch.equal(_weights(other), before)
    comm.detach()
    return refused


def _scaler(here: Here) -> str:
    model = ddp(here, "gloo", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    return refusal(lambda: attach(model, optimizer, "decentralized", scaler=torch.amp.GradScaler("cpu")))


def _peers(here: Here) -> str:
    return refusal(lambda: Decentralized(peers="some"))  # type: ignore[arg-type]


def _interval(here: Here) -> str:
    return refusal(lambda: Decentralized(interval=0))


@pytest.mark.parametrize(
    ("what", "word"),
    [
        (_scaler, "GradScaler"),
        (_peers, "shift_one"),
        (_interval, "interval=0"),
        (_of_another_model, "weight has the shape no such parameter in the state, and (3, 3) in the model"),
    ],
)
def test_what_is_refused(two: Ranks, what: Callable[[Here], str], word: str) -> None:
    for refused in two.run(what):
        assert refused.startswith("ValueError"), refused
        assert word in refused, refused
        assert "\n" not in refused


def _outlives(here: Here, algorithm: Algorithm) -> None:
    model, optimizer, comm = _attached(here, "gloo", algorithm)
    for step in range(2):
        _step(here, model, optimizer, step)
    module = model.module
    here.meet("trained")
    del model
    gc.collect()
    assert comm._context.wrapper() is None
    before = _weights(module)
    _step(here, module, optimizer, 2)
    assert torch.allclose(_weights(module), before - RATE * _gradients(module), rtol=0, atol=1e-6)
    optimizer.step(lambda: None)
    assert not [thread for thread in threading.enumerate() if "async rounds" in thread.name]
    comm.detach()


@pytest.mark.parametrize(
    "algorithm",
    [Decentralized(), LowPrecisionDecentralized(), AsyncModelAverage(warmup_steps=2)],
    ids=lambda algorithm: algorithm.name,
)
def test_an_optimizer_that_outlives_the_model_steps_by_itself(two: Ranks, algorithm: Algorithm) -> None:
    two.run(_outlives, algorithm)


def _ends_in_an_average(here: Here) -> None:
    """Rank 0's forward pass has begun it, and rank 1's does later."""
    model, _, comm = _attached(here, "bagua_net", Decentralized())
    if here.rank == 0:
        model(batch(here, 0)[0])
        here.say("ends")
        comm.detach(synchronize=False)
        assert here.board.check(["has begun"])
    else:
        here.hear("ends")
        here.say("has begun")
        model(batch(here, 0)[0])
        comm.detach(synchronize=False)


def test_an_end_without_a_last_average_waits_for_the_one_under_way(two: Ranks) -> None:
    two.run(_ends_in_an_average)


def _dies(here: Here, backend: str, peers: str) -> str:
    model, optimizer, comm = _attached(here, backend, Decentralized(peers=peers))  # type: ignore[arg-type]
    for step in range(2):  # in the second one DDP itself sends: it cuts its buckets anew
        _step(here, model, optimizer, step)
    here.say(f"trained/{here.rank}")
    failed = "accepted"
    while failed == "accepted":  # until the other one is gone
        failed = refusal(lambda: _step(here, model, optimizer, 1))
    for _ in range(2):  # no step is made without an average and without an error
        failed = refusal(optimizer.step)
        assert failed != "accepted"
    comm.detach()
    return failed


@pytest.mark.nightly
@pytest.mark.parametrize(("backend", "peers"), [("bagua_net", "all"), ("gloo", "shift_one")])
def test_a_rank_that_dies_ends_the_other_with_an_error(backend: str, peers: str) -> None:
    said = survivor(_dies, backend, peers)
    assert said.startswith("RuntimeError: bagua_net.algorithms: decentralized: weights could not be averaged: "), said
    assert "all ranks take the same number of optimizer steps" in said
