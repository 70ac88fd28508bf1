# SPDX-License-Identifier: MIT
"""Under Join: algorithms whose ranks meet in their steps refuse, on all ranks at once, and so does any with a divisor
that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.algorithms.join import Join

from bagua_net.algorithms import AsyncModelAverage, QAdamOptimizer, attach
from tests.algorithms.models import backward, ddp
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _joined(here: Here, algorithm: Any) -> str:
    model = ddp(here, "gloo", broadcast_buffers=False)
    made = QAdamOptimizer if algorithm == "qadam" else torch.optim.SGD
    comm = attach(model, made(model.parameters(), lr=0.05), algorithm)
    with Join([model]):
        refused = refusal(lambda: backward(here, model, 0))
    comm.detach()
    return refused


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("qadam", "qadam"),
        ("diloco", "diloco"),
        ("decentralized", "decentralized"),
        ("low_precision_decentralized", "low_precision_decentralized"),
        (AsyncModelAverage(warmup_steps=3), "async with warmup_steps"),
    ],
    ids=["qadam", "diloco", "decentralized", "low precision", "async in its warm-up"],
)
def test_ranks_that_would_wait_for_one_without_inputs_say_so(two: Ranks, algorithm: Any, name: str) -> None:
    for refused in two.run(_joined, algorithm):
        assert "RuntimeError" in refused, refused
        assert f"{name} cannot train under Join" in refused, refused


def _after_join(here: Here, by_initial_world_size: bool) -> None:
    """torch does not take its mark from the model."""
    model = ddp(here, "gloo", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model], divide_by_initial_world_size=by_initial_world_size):
        backward(here, model, 0)
    with Join([model], enable=False):
        pass
    comm = attach(model, optimizer, "decentralized")
    for step in range(2):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    comm.detach()


@pytest.mark.parametrize("by_initial_world_size", [True, False])
def test_the_mark_of_join_can_be_removed(two: Ranks, by_initial_world_size: bool) -> None:
    two.run(_after_join, by_initial_world_size)


def _goes_on(here: Here) -> None:
    model = ddp(here, "gloo", broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    comm = attach(model, optimizer, AsyncModelAverage(interval_ms=0))
    with Join([model]):
        for step in range(4 if here.rank == 0 else 2):
            optimizer.zero_grad()
            backward(here, model, step)
            optimizer.step()
    comm.detach()


def test_ranks_that_wait_for_nobody_train_under_join(two: Ranks) -> None:
    two.run(_goes_on)


def _mean_of_active(here: Here, detached: bool) -> str:
    model = ddp(here, "gloo")
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "bytegrad")
    if detached:
        comm.detach()
    with Join([model], divide_by_initial_world_size=False):
        return refusal(lambda: backward(here, model, 0))


@pytest.mark.parametrize("detached", [False, True])
def test_a_mean_over_the_ranks_with_inputs_is_refused(two: Ranks, detached: bool) -> None:
    for refused in two.run(_mean_of_active, detached):
        assert "divide_by_initial_world_size=False" in refused, refused
