# SPDX-License-Identifier: MIT
"""An algorithm with which ranks train apart for ever, to see what is kept of each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from bagua_net.algorithms import Algorithm, Running
from bagua_net.algorithms._job import Job
from bagua_net.algorithms._switchboard import switchboard_of


@dataclass(frozen=True)
class Apart(Algorithm):
    """Each rank trains alone."""

    name: ClassVar[str] = "apart"
    averages: ClassVar[Literal["momentum", "weights"]] = "weights"

    def start(self, job: Job) -> Running:
        return Alone(job)


class Alone(Running):
    #: The sum of the first parameter's gradient before each step of the optimizer, of the last one of these.
    gradients_before_step: ClassVar[list[float]] = []

    #: Whether any one was ended, rather than dropped.
    stopped: ClassVar[bool] = False

    def __init__(self, job: Job) -> None:
        model = job.wrapper()
        assert model is not None
        assert not model.broadcast_buffers
        switchboard_of(model).target(self.reduce)
        parameter = next(iter(job.parameters.values()))
        self._model = job.wrapper
        self.gradients_before_step.clear()
        self._hook = job.optimizer.register_step_pre_hook(
            lambda *_: self.gradients_before_step.append(float(parameter.grad.sum()))
        )

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def stop(self) -> None:
        Alone.stopped = True
        self._hook.remove()
        switchboard_of(self._model()).target(None)
