# SPDX-License-Identifier: MIT
"""What holds of averages, held by the algorithms and broken by those with one defect."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import (
    Algorithm,
    AsyncModelAverage,
    ByteGrad,
    Decentralized,
    LowPrecisionDecentralized,
    attach,
)
from tests.algorithms.controls import LostMessage, NeverAverages, NoRounds, OldReplicas, ShortResiduals, Unclamped
from tests.algorithms.models import ddp, mean_of
from tests.support.rank import Here
from tests.support.ranks import Ranks

ROWS, COLUMNS = 16, 64


class _Given(nn.Module):  # type: ignore[misc]
    """The gradient of its weights is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def _averaged(model: DistributedDataParallel, gradient: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    model(gradient).backward()
    assert model.module.weight.grad is not None
    return model.module.weight.grad.clone()


# ---- the bound of an average ----


def _error_of_a_symmetric_gradient(here: Here, algorithm: Algorithm) -> float:
    """The largest, in steps: parts of 255 of the range. The same gradient on all ranks, from -1 to 1."""
    gradient = torch.linspace(-1, 1, ROWS * COLUMNS).view(ROWS, COLUMNS)
    model = ddp(here, "bagua_net", _Given())
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm)
    error = (_averaged(model, gradient) - gradient).abs().max() / (2 / 255)
    comm.detach()
    return float(error)


def test_an_average_is_within_a_step_and_without_a_clamp_it_is_not(two: Ranks) -> None:
    assert max(two.run(_error_of_a_symmetric_gradient, ByteGrad(block=1024, error_feedback=False))) <= 1.001
    assert min(two.run(_error_of_a_symmetric_gradient, Unclamped())) > 200


# ---- what residuals keep ----


def _missing(here: Here, algorithm: Algorithm) -> float:
    """What the averages of many steps and the residuals lack of the exact averages, as a part of the residuals."""
    model = ddp(here, "bagua_net", _Given())
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm)
    wanted, got = torch.zeros(ROWS, COLUMNS, dtype=torch.float64), torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    draw = torch.Generator().manual_seed(here.rank)
    for _ in range(30):
        gradient = torch.randn(ROWS, COLUMNS, generator=draw)
        wanted += mean_of(here, gradient.double())
        got += _averaged(model, gradient)
    residual = mean_of(here, comm.state_dict()["state"]["residuals"]["weight"].double()).view(ROWS, COLUMNS)
    comm.detach()
    return float((wanted - got - residual).abs().max() / residual.abs().max())


def test_residuals_keep_what_is_lost_and_short_ones_do_not(two: Ranks) -> None:
    assert max(two.run(_missing, ByteGrad(bits=4))) < 1e-4
    assert min(two.run(_missing, ShortResiduals(bits=4))) > 1e-3


# ---- what averages of weights do ----

_STEPS = 20


def _distances(here: Here, algorithm: Algorithm) -> tuple[float, float]:
    """After steps without a gradient: how far this rank's weights are from the mean of all ranks', and how far that
    has moved; as parts of the first distance between two ranks."""
    model = ddp(here, "gloo", _Given(), broadcast_buffers=False)
    weight = model.module.weight
    with torch.no_grad():
        weight.fill_(float(here.rank))
    before = mean_of(here, weight.detach().double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    comm = attach(model, optimizer, algorithm)
    steps = 0
    while steps < _STEPS or _waits_for_rounds(algorithm, comm.stats()):
        model(torch.ones(ROWS, COLUMNS)).backward()
        optimizer.step()
        steps += 1
    comm.detach(synchronize=False)
    after = mean_of(here, weight.detach().double())
    return float((weight - after).abs().max()), float((after - before).abs().max())


def _waits_for_rounds(algorithm: Algorithm, stats: dict[str, float]) -> bool:
    """Those of a thread, which come when they may."""
    return type(algorithm) is AsyncModelAverage and stats["exchanges"] < 3


@pytest.mark.parametrize(
    "algorithm",
    [
        Decentralized(),
        Decentralized(peers="shift_one"),
        LowPrecisionDecentralized(),
        AsyncModelAverage(interval_ms=0),
    ],
    ids=["decentralized", "shift one", "low precision", "async"],
)
def test_the_ranks_come_to_their_mean(four: Ranks, algorithm: Algorithm) -> None:
    for apart, moved in four.run(_distances, algorithm):
        assert apart < 0.02
        assert moved < 0.02


@pytest.mark.parametrize(
    ("algorithm", "defect"),
    [
        (NeverAverages(), "apart"),
        (LostMessage(peers="shift_one"), "moved"),
        (OldReplicas(), "apart"),
        (NoRounds(interval_ms=0), "apart"),
    ],
    ids=["never averages", "lost message", "old replicas", "no rounds"],
)
def test_with_a_defect_they_do_not(four: Ranks, algorithm: Algorithm, defect: str) -> None:
    apart, moved = zip(*four.run(_distances, algorithm), strict=True)
    assert max(apart if defect == "apart" else moved) > 0.2, (apart, moved)
