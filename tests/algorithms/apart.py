# SPDX-License-Identifier: MIT
"""An algorithm with which ranks train apart for ever, to see what is kept of each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from bagua_net.algorithms import Algorithm
from bagua_net.algorithms._algorithm import AlgorithmImpl
from bagua_net.algorithms._context import AlgorithmContext
from bagua_net.algorithms._dispatcher import dispatcher_of


@dataclass(frozen=True)
class Apart(Algorithm):
    """Each rank trains alone."""

    name: ClassVar[str] = "apart"
    averages: ClassVar[Literal["momentum", "weights"]] = "weights"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return Alone(context)


class Alone(AlgorithmImpl):
    #: The sum of the first parameter's gradient before each step of the optimizer, of the last one of these.
    gradients_before_step: ClassVar[list[float]] = []

    #: Whether any one was ended, rather than dropped.
    stopped: ClassVar[bool] = False

    def __init__(self, context: AlgorithmContext) -> None:
        model = context.wrapper()
        assert model is not None
        assert not model.broadcast_buffers
        dispatcher_of(model).set_target(self.reduce)
        parameter = next(iter(context.parameters.values()))
        self._model = context.wrapper
        self.gradients_before_step.clear()
        self._hook = context.optimizer.register_step_pre_hook(
            lambda *_: self.gradients_before_step.append(float(parameter.grad.sum()))
        )

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def stop(self) -> None:
        Alone.stopped = True
        self._hook.remove()
        dispatcher_of(self._model()).set_target(None)
