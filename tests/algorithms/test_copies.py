# SPDX-License-Identifier: MIT
"""A copy of a model that an algorithm works on has none, trains as plain DDP does, and takes one of its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from bagua_net.algorithms import Algorithm, AsyncModelAverage, ByteGrad, Decentralized, attach
from bagua_net.algorithms.ddp_comm_hooks import ByteGradState, bytegrad_hook
from tests.algorithms.models import WIDTH, backward, ddp, exact_gradients, gradients, inside
from tests.support.rank import Here
from tests.support.ranks import Ranks

_EXACT = 1e-6


def _close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], atol=_EXACT) for name in other)


def _pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def _copies(here: Here, algorithm: Algorithm, copied: Callable[[nn.Module], Any]) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    comm = attach(model, optimizer, algorithm)
    backward(here, model, 0)
    optimizer.step()
    other = copied(model)
    comm.pause()  # with averages of weights, whose thread would change them
    other.load_state_dict(model.state_dict())
    want = exact_gradients(here, other, 1)
    other.zero_grad()
    backward(here, other, 1)
    assert _close(gradients(other), want), "the copy averages as DDP does"
    again = attach(other, torch.optim.SGD(other.parameters(), 0.05), "bytegrad")
    other.zero_grad()
    backward(here, other, 1)
    assert again.stats()["elements"] == sum(each.numel() for each in inside(other).parameters())
    again.detach()
    comm.detach()


@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize(
    "algorithm", [ByteGrad(), Decentralized(), AsyncModelAverage()], ids=["bytegrad", "decentralized", "async"]
)
def test_a_copy_is_a_plain_ddp_to_which_an_algorithm_may_be_attached(
    two: Ranks, algorithm: Algorithm, copied: Callable[[nn.Module], Any]
) -> None:
    two.run(_copies, algorithm, copied)


def _averages(here: Here) -> None:
    model = ddp(here, "bagua_net")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    comm = attach(model, optimizer, "bytegrad")
    averaged = AveragedModel(model)
    for step in range(2):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
        averaged.update_parameters(model)
    assert torch.isfinite(averaged(torch.zeros(1, WIDTH))).all()
    assert comm.stats()["elements"] == 2 * sum(each.numel() for each in model.parameters())
    comm.detach()


def test_an_averaged_model(two: Ranks) -> None:
    two.run(_averages)


def _attribute(here: Here) -> None:
    """As bagua_net.compat keeps it."""
    model: Any = ddp(here, "bagua_net")
    model.comm = attach(model, torch.optim.SGD(model.parameters(), 0.05), "bytegrad")
    other = copy.deepcopy(model)
    assert "detached" in repr(other.comm)
    assert "detached" not in repr(model.comm)
    other.comm.detach()
    model.comm.detach()


def test_a_copied_handle_is_a_detached_one(two: Ranks) -> None:
    two.run(_attribute)


def _with_a_hook(here: Here) -> None:
    model = ddp(here, "bagua_net")
    model.register_comm_hook(ByteGradState(ByteGrad(bits=4)), bytegrad_hook)
    backward(here, model, 0)
    other = copy.deepcopy(model)
    want = exact_gradients(here, other, 1)
    other.zero_grad()
    backward(here, other, 1)
    assert _close(gradients(other), want)


def test_a_model_with_a_plain_hook_can_be_copied(two: Ranks) -> None:
    two.run(_with_a_hook)
