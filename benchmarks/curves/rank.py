# SPDX-License-Identifier: MIT
"""One rank: trains each side in turn, and copies the weights now and then. Accuracy is judged after the last step, so
that judging takes no time of the training's. Rank 0 reports."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO

import torch
import torch.distributed as dist

import bagua_net.torch  # noqa: F401  (registers the backend)
from benchmarks.curves.sides import BACKENDS, TASKS, Run, Training, judged, rows
from benchmarks.loads.torch_rank import serve_torch

_TIMEOUT = timedelta(seconds=600)


@dataclass(frozen=True)
class Spec:
    rank: int
    ranks: int
    address: str
    """Of the store, on rank 0's host."""
    port: int
    task: str
    seeds: int
    steps: int
    every: int
    """Steps from one copy of the weights to the next."""
    sides: tuple[str, ...]
    """A backend and a row, such as "gloo exact, adam"."""


class Rank:
    def __init__(self, spec: Spec, out: TextIO) -> None:
        self._spec = spec
        self._out = out
        self._control: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._groups: dict[str, Any] = {name: dist.new_group(backend=name, timeout=_TIMEOUT) for name in BACKENDS}

    def take_part(self) -> None:
        for seed in range(self._spec.seeds):
            for side in self._spec.sides if seed % 2 == 0 else reversed(self._spec.sides):
                self._say({"seed": seed, "side": side, **self._read(seed, *side.split(" ", 1))})
        self._say({"event": "end"})
        dist.barrier(self._control)

    def _say(self, line: dict[str, Any]) -> None:
        if self._spec.rank == 0:
            print(json.dumps(line), file=self._out)

    def _read(self, seed: int, backend: str, row: str) -> dict[str, Any]:
        """Seconds of training and the accuracy at each copy."""
        run = Run(self._spec.task, backend, seed, self._spec.steps)
        training = Training(rows(self._spec.task)[row], run, self._spec.rank, self._groups[backend])
        copies: list[torch.Tensor] = []
        seconds: list[float] = []
        dist.barrier(self._control)
        start = time.perf_counter()
        for step in range(1, self._spec.steps + 1):
            training.step()
            if step % self._spec.every == 0:
                copies.append(torch.nn.utils.parameters_to_vector(training.model.parameters()).detach())
                seconds.append(time.perf_counter() - start)
        dist.barrier(self._control)
        training.end()
        accuracy = self._judge(training, copies)
        del training
        gc.collect()
        return {"seconds": self._slowest(seconds), "accuracy": accuracy}

    def _judge(self, training: Training, copies: list[torch.Tensor]) -> list[float]:
        """Percent, of the mean of the ranks' weights: it is what is kept of a run whose ranks train apart. Each rank
        judges some of the copies."""
        task, found = TASKS[self._spec.task], torch.zeros(len(copies), dtype=torch.float64)
        for number, weights in enumerate(copies):
            dist.all_reduce(weights, group=self._control)
            if number % self._spec.ranks == self._spec.rank:
                torch.nn.utils.vector_to_parameters(weights / self._spec.ranks, training.model.parameters())
                found[number] = judged(training.model.module, task.unseen())[0]
        dist.all_reduce(found, group=self._control)
        return list(found.tolist())

    def _slowest(self, seconds: list[float]) -> list[float]:
        found = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._control)
        return list(found.tolist())


if __name__ == "__main__":
    serve_torch(Spec, lambda spec, out: Rank(spec, out).take_part(), _TIMEOUT)
