# SPDX-License-Identifier: MIT
"""A run that is saved on its way, made anew and loaded ends with the bits of one that was not interrupted.

What rank 0 writes holds its own weights and optimizer, as frameworks save them, and the states of all ranks.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from bagua_net.algorithms import (
    AlgorithmHandle,
    AsyncModelAverage,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GatheredState,
    LowPrecisionDecentralized,
    QAdam,
    QAdamOptimizer,
)
from tests.algorithms.models import attached, backward, inside, net
from tests.support.rank import Here
from tests.support.ranks import Ranks

pytestmark = pytest.mark.gate

_SAVED, _END = 5, 10  # steps
_RATE = 0.05

_ALGORITHMS = {
    "bytegrad": ByteGrad(bits=4, block=64),
    "qadam, 8 bits": QAdam(block=64),
    "qadam, 1 bit": QAdam(bits=1, block=64),
    "diloco": DiLoCo(steps=4, bits=4),
    "diloco, fragments": DiLoCo(steps=4, fragments=2),
    "diloco, sparse": DiLoCo(steps=4, density=0.1, bits=2, block=256),
    "decentralized": Decentralized(),
    "decentralized, interval": Decentralized(interval=3),
    "decentralized, shift one": Decentralized(peers="shift_one"),
    "low precision": LowPrecisionDecentralized(block=64),
    "low precision, interval": LowPrecisionDecentralized(bits=4, interval=3),
}


def _made(here: Here, backend: str, algorithm: Any) -> tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]:
    """DDP keeps its first buckets with find_unused_parameters, so that a resumed run has the same; async refuses it."""
    module = net()
    if isinstance(algorithm, QAdam):
        optimizer: torch.optim.Optimizer = QAdamOptimizer(module.parameters(), 0.01, warmup_steps=3)
    else:
        optimizer = torch.optim.SGD(module.parameters(), _RATE, momentum=0.9)
    keeps_buckets = {"find_unused_parameters": not isinstance(algorithm, AsyncModelAverage)}
    model, comm = attached(here, backend, module, optimizer, algorithm, **keeps_buckets)
    return model, optimizer, comm


def _trained(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> torch.Tensor:
    for step in steps:
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    return nn.utils.parameters_to_vector(inside(model).parameters()).detach().clone()


def _saved_by_rank_0(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, comm: AlgorithmHandle) -> bytes:
    state = {"weights": inside(model).state_dict(), "optimizer": optimizer.state_dict()}
    state["algorithm"] = GatheredState(comm).state_dict()
    if here.rank == 0:
        stream = io.BytesIO()
        torch.save(state, stream)
        here.board.set("checkpoint", stream.getvalue())
    return bytes(here.board.get("checkpoint"))


def _resumed(here: Here, backend: str, algorithm: Any, saved: bytes, with_states: bool) -> torch.Tensor:
    """The weights at the end."""
    model, optimizer, comm = _made(here, backend, algorithm)
    state = torch.load(io.BytesIO(saved), weights_only=True)
    inside(model).load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    if with_states:
        GatheredState(comm).load_state_dict(state["algorithm"])
    end = _trained(here, model, optimizer, range(_SAVED, _END))
    comm.detach()
    return end


def _resumes(here: Here, backend: str, algorithm: Any) -> tuple[bool, bool]:
    """Whether it ends with the same bits: with the states of all ranks, and without them."""
    model, optimizer, comm = _made(here, backend, algorithm)
    _trained(here, model, optimizer, range(_SAVED))
    saved = _saved_by_rank_0(here, model, optimizer, comm)
    whole = _trained(here, model, optimizer, range(_SAVED, _END))
    comm.detach()
    with_states, without = (_resumed(here, backend, algorithm, saved, each) for each in (True, False))
    return torch.equal(with_states, whole), torch.equal(without, whole)


@pytest.mark.parametrize("backend", ["bagua_net", "gloo"])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(four: Ranks, algorithm: str, backend: str) -> None:
    resumed, without_states = zip(*four.run(_resumes, backend, _ALGORITHMS[algorithm]), strict=True)
    assert all(resumed)
    assert not all(without_states), "the states of the ranks are for nothing"


def test_async_resumes_with_the_same_bits_in_its_warm_up(two: Ranks) -> None:
    """Its steps so far are in the state: without it, the warm-up would be as long again. The first round comes an hour
    after its end, so that the ranks train apart for the rest of the run. A sum over two ranks has the same bits in any
    order."""
    resumes = two.run(_resumes, "gloo", AsyncModelAverage(interval_ms=3_600_000, warmup_steps=_SAVED + 1))
    assert all(same for same, _ in resumes)
    assert not any(without for _, without in resumes)
