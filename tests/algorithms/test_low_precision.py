# SPDX-License-Identifier: MIT
"""Low-precision decentralized: replicas have the same bits on both ranks, ranks come together, a run is resumed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bagua_net.algorithms import AlgorithmHandle, LowPrecisionDecentralized, attach
from tests.algorithms.inside import cut
from tests.algorithms.models import backward, ddp
from tests.algorithms.survivor import survivor
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).clone()


def _of_all(here: Here, mine: torch.Tensor) -> torch.Tensor:
    """Shape (ranks, elements)."""
    rows = [torch.empty_like(mine) for _ in range(here.size)]
    dist.all_gather(rows, mine, group=here.gloo)
    return torch.stack(rows)


def _attached(
    here: Here, backend: str, rate: float = 0.05, **settings: Any
) -> tuple[nn.Module, torch.optim.Optimizer, AlgorithmHandle]:
    model = ddp(here, backend, broadcast_buffers=False)
    with torch.no_grad():  # ranks that differ from the first step on
        for each in model.parameters():
            each.add_(0.1 * here.rank)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    return model, optimizer, attach(model, optimizer, LowPrecisionDecentralized(**({"block": 64} | settings)))


def _step(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(here, model, step)
    optimizer.step()


def _replica(comm: AlgorithmHandle, name: str) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in comm.state_dict()["state"][name].values()])


def _keeps_replicas(here: Here, backend: str, bits: int, chunk: int) -> list[float]:
    """The weights at the end. chunk: as many elements travel in a message; 0: all of them."""
    model, optimizer, comm = _attached(here, backend, bits=bits)
    if chunk:
        cut(comm, chunk)
    for step in range(5):
        _step(here, model, optimizer, step)
        own = _of_all(here, _replica(comm, "own"))
        assert torch.equal(own[here.rank], _weights(model))
        assert torch.equal(own[here.rank - 1], _replica(comm, "left"))
        assert torch.equal(own[(here.rank + 1) % here.size], _replica(comm, "right"))
        assert not torch.equal(own[here.rank - 1], own[here.rank]), "the ranks do not train apart"
    neighbours, elements = min(here.size - 1, 2), own.size(1)
    assert comm.stats()["bytes"] < neighbours * elements * (4 + 5 * 1.2), "the weights themselves were sent"
    comm.detach()
    return list(_weights(model).tolist())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_neighbours_replica_has_the_bits_of_the_weights(ranks: Ranks, backend: str, bits: int) -> None:
    whole, in_chunks = (ranks.run(_keeps_replicas, backend, bits, chunk) for chunk in (0, 192))
    assert in_chunks == whole


def _comes_together(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo", rate=0.0)
    before = _of_all(here, _weights(model))
    _step(here, model, optimizer, 0)
    left, right = before[here.rank - 1], before[(here.rank + 1) % here.size]
    want = (before[here.rank] + left + right) / 3
    assert torch.allclose(_weights(model), want, rtol=0, atol=2e-3)  # a step of the codec: a range of 0.3 by 255
    for _ in range(30):
        _step(here, model, optimizer, 0)
    assert torch.allclose(_weights(model), before.mean(0), rtol=0, atol=1e-3)
    comm.detach()


def test_without_steps_of_the_optimizer_the_ranks_come_to_their_mean(four: Ranks) -> None:
    four.run(_comes_together)


def test_two_ranks_come_to_their_mean(two: Ranks) -> None:
    two.run(_comes_together)


def _resumes(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo")
    for step in range(3):
        _step(here, model, optimizer, step)
    saved = io.BytesIO()
    torch.save([comm.state_dict(), model.module.state_dict(), optimizer.state_dict()], saved)
    for step in range(3, 6):
        _step(here, model, optimizer, step)
    want = _weights(model)
    comm.detach()
    model, optimizer, comm = _attached(here, "gloo")
    state, weights, of_optimizer = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    model.module.load_state_dict(weights)
    optimizer.load_state_dict(of_optimizer)
    comm.load_state_dict(state)
    for step in range(3, 6):
        _step(here, model, optimizer, step)
    assert torch.equal(_weights(model), want)
    comm.detach()


def _pauses(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo")
    _step(here, model, optimizer, 0)
    comm.pause()
    assert (_of_all(here, _weights(model)) == _weights(model)).all(), "the weights were not averaged"
    _step(here, model, optimizer, 1)  # apart again a little: each rank has its own momentum
    gradients = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
    assert (_of_all(here, gradients) == gradients).all(), "gradients are not averaged exactly"
    comm.resume()
    _step(here, model, optimizer, 2)
    own = _of_all(here, _replica(comm, "own"))
    assert torch.equal(own[here.rank - 1], _replica(comm, "left"))
    assert torch.equal(own[here.rank], _weights(model))
    comm.detach()


def _has_an_interval(here: Here) -> None:
    model, optimizer, comm = _attached(here, "gloo", interval=2)
    for step in range(4):
        _step(here, model, optimizer, step)
    assert comm.stats()["exchanges"] == 1 + 2  # of the weights, at first
    comm.detach()


def _fails_between_chunks(here: Here) -> None:
    """Replicas of which a part has grown are not saved: those of another rank might have grown elsewhere."""
    model, optimizer, comm = _attached(here, "gloo")
    _step(here, model, optimizer, 0)
    assert "own" in comm.state_dict()["state"]
    cut(comm, 64, fails_after=1)
    assert "a rank is gone" in refusal(lambda: _step(here, model, optimizer, 1))
    assert "own" not in comm.state_dict()["state"]
    comm.detach()


@pytest.mark.parametrize("what", [_resumes, _pauses, _has_an_interval, _fails_between_chunks])
def test_what_training_does_besides_plain_steps(two: Ranks, four: Ranks, what: Callable[[Here], None]) -> None:
    two.run(what)
    four.run(what)


def _float64(here: Here) -> str:
    model = ddp(here, "gloo", nn.Linear(4, 4).double(), broadcast_buffers=False)
    return refusal(lambda: attach(model, torch.optim.SGD(model.parameters(), 0.1), "low_precision_decentralized"))


def _other_parameters(here: Here) -> str:
    model, optimizer, comm = _attached(here, "gloo")
    _step(here, model, optimizer, 0)
    state = comm.state_dict()
    del state["state"]["left"]["0.weight"]
    refused = refusal(lambda: comm.load_state_dict(state))
    comm.detach()
    return refused


@pytest.mark.parametrize(("what", "word"), [(_float64, "float64"), (_other_parameters, "0.weight")])
def test_what_is_refused(two: Ranks, what: Callable[[Here], str], word: str) -> None:
    for refused in two.run(what):
        assert refused.startswith("ValueError"), refused
        assert word in refused, refused
        assert "\n" not in refused


def _dies(here: Here, backend: str) -> str:
    model, optimizer, comm = _attached(here, backend)
    for step in range(2):  # in the second one, DDP's ranks tell each other how buckets are cut
        _step(here, model, optimizer, step)
    here.say(f"trained/{here.rank}")
    failed = "accepted"
    while failed == "accepted":  # until the other one is gone
        failed = refusal(lambda: _step(here, model, optimizer, 1))
    comm.detach()
    return failed


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_ends_the_other_with_an_error_that_names_it(backend: str) -> None:
    said = survivor(_dies, backend)
    assert "rank 1" in said, said
