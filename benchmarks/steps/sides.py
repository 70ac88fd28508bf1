# SPDX-License-Identifier: MIT
"""What is compared: a backend and what happens to the gradients over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import (
    Algorithm,
    AlgorithmHandle,
    AsyncModelAverage,
    Auto,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GradientAllReduce,
    LowPrecisionDecentralized,
    QAdam,
    QAdamOptimizer,
    attach,
)
from benchmarks.steps.report import CANDIDATES

#: The sides that are candidates of ``auto``, by what it calls them.
_SIDE_OF = dict(zip(("allreduce", "bfloat16", "bytegrad"), CANDIDATES, strict=True))
#: Makes an optimizer of parameters.
Optimize = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class Begun:
    """What happens to the gradients of a model, until :meth:`end`."""

    def __init__(self, handle: AlgorithmHandle | None = None) -> None:
        self._handle = handle

    @property
    def chosen(self) -> str | None:
        """The way that ``auto`` goes on with; "" while it tries, None where nothing is chosen."""
        if self._handle is None or self._handle.algorithm.name != "auto":
            return None
        chosen = self._handle.chosen
        return _SIDE_OF[chosen] if chosen else ""

    def end(self) -> None:
        if self._handle is not None:
            self._handle.detach()


#: Begins on a model, given its optimizer and its group.
Begin = Callable[[DistributedDataParallel, torch.optim.Optimizer, Any], Begun]

#: Steps before a reading: DDP cuts its buckets anew after the first one, and all memory is touched in the second.
WARM_UP = 2
_RANK = 4  # of PowerSGD's approximation
#: Steps of a reading in which ranks train apart: one meeting of DiLoCo; for "async", a round on a fast network.
_APART = 30
#: Steps of each turn of ``auto``'s candidates. Its default of 5 takes long at 100 Mbit/s.
TRIAL = 2


def _plain(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, group: Any) -> Begun:
    return Begun()


def _power_sgd(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, group: Any) -> Begun:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=_RANK, start_powerSGD_iter=WARM_UP)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Begun()


def _attached(algorithm: Callable[[], Algorithm]) -> Begin:
    def begin(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, group: Any) -> Begun:
        return Begun(attach(model, optimizer, algorithm()))

    return begin


def _sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-6)


def _qadam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Its warm-up is over when a reading begins."""
    return QAdamOptimizer(parameters, lr=1e-6, warmup_steps=WARM_UP - 1)


@dataclass(frozen=True)
class Way:
    """Something that can happen to gradients."""

    begin: Begin
    steps: int = 0
    """That one reading must cover; 0: as many as the command says."""
    warm_up: int = WARM_UP
    """Steps before a reading."""
    optimizer: Optimize = _sgd


def auto(trial_steps: int) -> Way:
    return Way(_attached(lambda: Auto(trial_steps=trial_steps)))


#: By name. torch's own PowerSGD is the only one that is not ours and compresses as much.
WAYS: dict[str, Way] = {
    "plain": Way(_plain),
    "bf16": Way(_attached(lambda: GradientAllReduce(wire="bfloat16"))),
    "PowerSGD": Way(_power_sgd, warm_up=WARM_UP + 1),  # exact in the first two
    "ByteGrad 8": Way(_attached(lambda: ByteGrad(bits=8))),
    "ByteGrad 4": Way(_attached(lambda: ByteGrad(bits=4))),
    "QAdam 8": Way(_attached(QAdam), optimizer=_qadam),
    "QAdam 1": Way(_attached(lambda: QAdam(bits=1)), optimizer=_qadam),
    "decentralized": Way(_attached(Decentralized)),
    "decentralized, shift-one": Way(_attached(lambda: Decentralized(peers="shift_one"))),
    "low precision": Way(_attached(LowPrecisionDecentralized)),
    "DiLoCo 8": Way(_attached(lambda: DiLoCo(steps=_APART)), steps=_APART),
    "async": Way(_attached(AsyncModelAverage), steps=_APART),
    "auto": auto(TRIAL),
}
