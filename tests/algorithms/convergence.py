# SPDX-License-Identifier: MIT
"""Trains a task on four ranks with an algorithm, and with exact averages from the same start over the same data.

A row of ``ROWS`` is what is held to a bound: an algorithm by its name, its settings, and how many points of accuracy it
may lose against exact averages, in the mean over the seeds. The small form is test_convergence.py, the whole one
``python3 -m benchmarks convergence``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, QAdamOptimizer, attach
from bagua_net.algorithms._registry import ALGORITHMS
from tests.algorithms.controls import CONTROLS
from tests.algorithms.models import group_of
from tests.algorithms.tasks import TASKS, Task, judged, loss_of
from tests.support.rank import Here
from tests.support.ranks import Ranks

RANKS = 4
BACKENDS = ("bagua_net", "gloo")
#: Megabytes of a bucket: the tasks' models have several.
_BUCKET = 0.03
#: The rate falls in a line to zero over this part of the steps: what is compared is where a run ends, not its jitter.
_FALLING = 0.5
#: QAdam warms up over this share of the steps: one in so many.
_WARMING_UP = 4
#: Until a run that hangs fails: longer than the longest of ``python3 -m benchmarks convergence``.
_SECONDS = 600


@dataclass(frozen=True)
class Row:
    """An algorithm that is trained with."""

    label: str
    algorithm: str  # a name of ALGORITHMS or of CONTROLS; "": DistributedDataParallel's own averages
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    optimizer: str = ""  # "": the task's usual one
    points: float = 0.5  # of accuracy, that may be lost
    equal: bool = True  # the ranks' parameters have the same bits at the end
    small: bool = True  # in the small form as well

    def exact(self) -> Row:
        """What it is compared with."""
        return Row("exact", "", optimizer=_COMPARED_WITH.get(self.optimizer, self.optimizer))


#: Optimizers that belong to an algorithm, and those that exact averages are trained with instead.
_COMPARED_WITH = {"qadam": "adam"}

#: Fewer steps to a round, and less momentum, than by default: a run has 30 rounds.
_DILOCO = {"steps": 10, "outer_momentum": 0.5}
_SPARSE = {"density": 0.1, "bits": 2, "block": 4096}

ROWS = (
    Row("allreduce", "allreduce"),
    Row("allreduce, bfloat16", "allreduce", {"wire": "bfloat16"}, small=False),
    Row("allreduce, by nodes", "allreduce", {"hierarchical": True, "ranks_per_node": 2}),
    Row("ByteGrad, 8 bits", "bytegrad", {"error_feedback": False}),
    Row("ByteGrad, 8 bits, error feedback", "bytegrad"),
    Row("ByteGrad, 4 bits, error feedback", "bytegrad", {"bits": 4}),
    Row("ByteGrad, 4 bits in blocks of 512, error feedback", "bytegrad", {"bits": 4, "block": 512}, small=False),
    Row("QAdam, 8 bits", "qadam", optimizer="qadam"),
    Row("QAdam, 1 bit", "qadam", {"bits": 1}, optimizer="qadam", points=1.0),
    # With Adam, weights that are averaged after steps of each rank's own lag on the characters: each rank scales its
    # own, noisier gradients.
    Row("DiLoCo, 10 steps, outer momentum 0.5", "diloco", _DILOCO, optimizer="sgd", points=1),
    Row("DiLoCo, a tenth in 2 bits", "diloco", _DILOCO | _SPARSE, optimizer="sgd", points=1, small=False),
    Row("DiLoCo, 10 steps, with Adam", "diloco", _DILOCO, optimizer="adam", points=1, small=False),
    Row("decentralized", "decentralized", optimizer="sgd", points=1, equal=False),
    Row("decentralized, shift one", "decentralized", {"peers": "shift_one"}, optimizer="sgd", points=1, equal=False),
    Row("low-precision decentralized", "low_precision_decentralized", optimizer="sgd", points=1, equal=False),
    # How often the thread averages in a short run depends on the machine's load, and so does where the run ends.
    Row("async", "async", {"interval_ms": 1, "warmup_steps": 40}, "sgd", points=1, equal=False, small=False),
)


@dataclass(frozen=True)
class Run:
    """What a row is trained on."""

    task: str
    backend: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Trained:
    """How a run ended: the mean of the ranks."""

    accuracy: float  # percent of what was not trained on
    loss: float
    megabytes: float  # that a rank sent, as the algorithm counts; 0: not counted
    equal: bool  # all ranks have the same parameters


def trained(ranks: Ranks, row: Row, run: Run) -> Trained:
    ends = ranks.run(train, row, run, seconds=_SECONDS)
    return Trained(
        accuracy=mean(end.accuracy for end in ends),
        loss=mean(end.loss for end in ends),
        megabytes=mean(end.megabytes for end in ends),
        equal=len({end.digest for end in ends}) == 1,
    )


# ---- on a rank ----


@dataclass(frozen=True)
class End:
    """How a run ended on one rank."""

    accuracy: float
    loss: float
    megabytes: float
    digest: str  # of the parameters


class Training:
    """Of one rank: a row on a run's task."""

    def __init__(self, row: Row, run: Run, rank: int, group: Any) -> None:
        self._task = TASKS[run.task]
        torch.manual_seed(run.seed)
        self.model = DistributedDataParallel(
            self._task.model(),
            process_group=group,
            bucket_cap_mb=_BUCKET,
            broadcast_buffers=False,  # the tasks' models have none; algorithms with which ranks train apart need it
        )
        self._optimizer = _optimizer(row.optimizer or self._task.optimizer, self._task, self.model, run.steps)
        self._rates = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(1.0, (1 - step / run.steps) / _FALLING)
        )
        self._data = torch.Generator().manual_seed(run.seed * RANKS + rank)
        self._comm: AlgorithmHandle | None = None
        if row.algorithm:
            self._comm = attach(self.model, self._optimizer, (ALGORITHMS | CONTROLS)[row.algorithm](**row.settings))

    def step(self) -> None:
        loss = loss_of(self.model, self._task.batch(self._data))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._rates.step()

    def end(self) -> float:
        """The megabytes that this rank has sent, as the algorithm counts."""
        if self._comm is None:
            return 0.0
        megabytes = self._comm.stats().get("bytes", 0.0) / 1e6
        if self._comm.algorithm.averages == "weights":
            self._comm.pause()  # what is kept of such a run is the mean of the ranks' weights
        self._comm.detach()
        return megabytes


def train(here: Here, row: Row, run: Run) -> End:
    training = Training(row, run, here.rank, group_of(here, run.backend))
    for _ in range(run.steps):
        training.step()
    megabytes = training.end()
    accuracy, loss = judged(training.model.module, TASKS[run.task].unseen())
    return End(accuracy, loss, megabytes, _digest(training.model.parameters()))


def _optimizer(kind: str, task: Task, model: torch.nn.Module, steps: int) -> torch.optim.Optimizer:
    parameters = model.parameters()
    if kind == "sgd":
        return torch.optim.SGD(parameters, task.sgd_rate, momentum=0.9)
    if kind == "qadam":
        return QAdamOptimizer(parameters, task.adam_rate, warmup_steps=max(1, steps // _WARMING_UP))
    assert kind == "adam", f"no optimizer is called {kind!r}"
    return torch.optim.Adam(parameters, task.adam_rate)


def _digest(parameters: Iterable[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for parameter in parameters:
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()
