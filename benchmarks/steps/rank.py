# SPDX-License-Identifier: MIT
"""One rank: trains with each side in turn. Rank 0 reports."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bagua_net.torch  # noqa: F401  (registers the backend)
from benchmarks.loads.torch_rank import serve_torch
from benchmarks.steps.models import Stub
from benchmarks.steps.sides import WAYS, Begun, Way, auto

BACKENDS = ("bagua_net", "gloo")
_TIMEOUT = timedelta(seconds=600)
#: Steps in one reading, unless the command says: one where a step takes longer, as it does over narrow lines.
_STEPS, _LONG_S = 2, 3.0


@dataclass(frozen=True)
class Spec:
    rank: int
    ranks: int
    address: str
    """Of the store, on rank 0's host."""
    port: int
    interface: str
    """Whose sent bytes are counted."""
    pairs: tuple[int, ...]
    """Their numbers: an odd one goes through the sides backwards."""
    steps: int
    """In one reading; 0: two, or one where a step takes long."""
    trial: int
    """Steps of each turn of ``auto``'s candidates."""
    model: str
    backward_s: float
    sides: tuple[str, ...]
    """A backend and a way, such as "gloo plain"."""


@dataclass(frozen=True)
class Reading:
    """Of one side, per step."""

    seconds: float
    """On the slowest rank."""
    sent: float
    """Bytes that rank 0's host sent."""
    processor_s: float
    """Of all ranks."""
    chosen: str | None
    """By ``auto``: a way."""


class Rank:
    def __init__(self, spec: Spec, out: TextIO) -> None:
        self._spec = spec
        self._out = out
        self._control: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._groups: dict[str, Any] = {name: dist.new_group(backend=name, timeout=_TIMEOUT) for name in BACKENDS}
        self._module = Stub(spec.model, spec.backward_s)
        self._x = torch.ones(1, requires_grad=True)

    def take_part(self) -> None:
        for pair in self._spec.pairs:
            for side in self._spec.sides if pair % 2 == 0 else reversed(self._spec.sides):
                reading = self._read(*side.split(" ", 1))
                self._say({"pair": pair, "side": side, **vars(reading)})
        self._say({"event": "end"})
        dist.barrier(self._control)

    def _say(self, line: dict[str, Any]) -> None:
        if self._spec.rank == 0:
            print(json.dumps({name: value for name, value in line.items() if value is not None}), file=self._out)

    def _over_ranks(self, value: float, op: Any) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op, group=self._control)
        return float(tensor.item())

    def _read(self, backend: str, name: str) -> Reading:
        way = auto(self._spec.trial) if name == "auto" else WAYS[name]
        group = self._groups[backend]
        model = DistributedDataParallel(
            self._module, process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False, init_sync=False
        )
        optimizer = way.optimizer(model.parameters())
        begun = way.begin(model, optimizer, group)
        steps = self._steps(way, self._warm_up(way, begun, model, optimizer))
        dist.barrier(self._control)
        sent, used, start = self._sent(), time.process_time(), time.perf_counter()
        for _ in range(steps):
            self._step(model, optimizer)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        dist.barrier(self._control)
        sent, chosen = self._sent() - sent, begun.chosen
        begun.end()
        optimizer.zero_grad()
        del model, optimizer, begun
        gc.collect()
        return Reading(
            self._over_ranks(seconds, dist.ReduceOp.MAX) / steps,
            sent / steps,
            self._over_ranks(used, dist.ReduceOp.SUM) / steps,
            chosen,
        )

    def _warm_up(
        self, way: Way, begun: Begun, model: DistributedDataParallel, optimizer: torch.optim.Optimizer
    ) -> float:
        """Seconds of the last step. Steps in which ``auto`` has not chosen yet do not count: what it chooses, in the
        same step on all ranks, needs as much warming up as the other sides."""
        done, start = 0, time.perf_counter()
        while done < way.warm_up:
            start = time.perf_counter()
            self._step(model, optimizer)
            done = 0 if begun.chosen == "" else done + 1
        return time.perf_counter() - start

    def _steps(self, way: Way, seconds: float) -> int:
        """Of a reading, when a step takes so long."""
        slowest = self._over_ranks(seconds, dist.ReduceOp.MAX)
        return way.steps or self._spec.steps or (1 if slowest > _LONG_S else _STEPS)

    def _step(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(self._x).sum().backward()
        optimizer.step()

    def _sent(self) -> float:
        """Bytes that the interface has sent since it exists."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self._spec.interface:
                return float(counters.split()[8])
        raise LookupError(f"this host has no interface {self._spec.interface}")


if __name__ == "__main__":
    serve_torch(Spec, lambda spec, out: Rank(spec, out).take_part(), _TIMEOUT)
