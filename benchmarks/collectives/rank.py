# SPDX-License-Identifier: MIT
"""One rank: makes a group of each backend and times calls over both, in turn. Rank 0 reports.

Controlled by lines of JSON (benchmarks.loads.ipc): a :class:`Spec`, and for rank 0's parent one line for each reading.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO

import torch
import torch.distributed as dist

import bagua_net.torch  # noqa: F401  (registers the backend)
from benchmarks.collectives import models
from benchmarks.collectives.calls import CALLS, Place, Step
from benchmarks.loads.torch_rank import serve_torch

SIDES = ("bagua_net", "gloo")
_TIMEOUT = timedelta(seconds=300)
#: Seconds of a block of calls, and its most calls.
_BLOCK_S, _MOST = 0.04, 200
_BUSY_OPERATIONS, _BUSY_BYTES = 20, 1 << 20
_WAIT_S = 2.0
_STEPS = 2


@dataclass(frozen=True)
class Spec:
    rank: int
    ranks: int
    address: str
    """Of the store, on rank 0's host."""
    port: int
    pairs: int
    sizes: tuple[int, ...]
    parts: tuple[str, ...]
    """Of "calls", "busy", "waits", "training"."""
    calls: tuple[str, ...]
    """Parts of names; "": all."""


class Rank:
    def __init__(self, spec: Spec, out: TextIO) -> None:
        self._spec = spec
        self._out = out
        self._control: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._places = {
            side: Place(dist.new_group(backend=side, timeout=_TIMEOUT), spec.rank, spec.ranks) for side in SIDES
        }

    def take_part(self) -> None:
        parts: dict[str, Callable[[], None]] = {
            "calls": self._calls,
            "busy": self._busy,
            "waits": self._waits,
            "training": self._training,
        }
        for name in self._spec.parts:
            parts[name]()
        self._say({"event": "end"})
        dist.barrier(self._control)

    def _say(self, line: dict[str, Any]) -> None:
        if self._spec.rank == 0:
            print(json.dumps(line), file=self._out)

    # ---- readings ----

    def _worst(self, value: float) -> float:
        """The largest value of all ranks."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tensor.item()

    def _block(self, step: Step, times: int) -> float:
        """Seconds of a call, on the slowest rank."""
        dist.barrier(self._control)
        start = time.perf_counter()
        for _ in range(times):
            step()
        return self._worst((time.perf_counter() - start) / times)

    def _read(self, name: str, nbytes: int, steps: dict[str, Step], most: int = _MOST, unit: float = 1e6) -> None:
        """Pairs of blocks, of which every other one begins with the other side."""
        times: dict[str, int] = {}
        for side, step in steps.items():
            self._block(step, 1)
            times[side] = int(max(1, min(most, _BLOCK_S / self._block(step, 1))))
        found: dict[str, list[float]] = {side: [] for side in steps}
        for pair in range(self._spec.pairs):
            for side in list(steps) if pair % 2 == 0 else reversed(list(steps)):
                found[side].append(self._block(steps[side], times[side]) * unit)
        self._say({"name": name, "bytes": nbytes, "sides": found})

    def _calls(self) -> None:
        for call in (call for call in CALLS if any(part in call.name for part in self._spec.calls)):
            for nbytes in self._spec.sizes if call.sized else (0,):
                steps = {side: call.make(place, nbytes) for side, place in self._places.items()}
                self._read(call.name, nbytes, {side: step for side, step in steps.items() if self._works(step)})

    def _works(self, step: Step) -> bool:
        """gloo lacks some."""
        failed = 0.0
        try:
            step()
        except (RuntimeError, ValueError):
            failed = 1.0
        return self._worst(failed) == 0.0

    # ---- beside busy Python ----

    def _busy(self) -> None:
        steps: dict[str, Step] = {}
        for side, place in self._places.items():
            tensors = [torch.ones(_BUSY_BYTES // 4) for _ in range(_BUSY_OPERATIONS)]

            def step(place: Place = place, tensors: list[torch.Tensor] = tensors) -> None:
                for work in [dist.all_reduce(tensor, group=place.group, async_op=True) for tensor in tensors]:
                    work.wait()

            steps[side] = step
        with _busy_python():
            self._read(f"{_BUSY_OPERATIONS} asynchronous all_reduce beside busy Python", _BUSY_BYTES, steps, most=1)

    # ---- what a wait costs ----

    def _waits(self) -> None:
        """Processor time of the ranks that wait for the last one, in thousandths of the wait."""
        for name, last in (("all_reduce", self._spec.ranks - 1), ("recv", 1)):
            found: dict[str, list[float]] = {side: [] for side in SIDES}
            for _ in range(self._spec.pairs):
                for side, place in self._places.items():
                    found[side].append(self._wait(place, name, last))
            self._say({"name": f"processor time of a wait in {name}", "bytes": 0, "sides": found})

    def _wait(self, place: Place, name: str, last: int) -> float:
        tensor = torch.ones(256)
        dist.barrier(place.group)
        dist.barrier(self._control)
        if place.rank == last:
            time.sleep(_WAIT_S)
        start, used = time.perf_counter(), time.process_time()
        if name == "all_reduce":
            dist.all_reduce(tensor, group=place.group)
        elif place.rank == 0:
            dist.recv(tensor, 1, group=place.group)
        elif place.rank == 1:
            dist.send(tensor, 0, group=place.group)
        share = (time.process_time() - used) / (time.perf_counter() - start)
        return self._worst(1000 * share if place.rank == 0 else 0.0)

    # ---- training ----

    def _training(self) -> None:
        for name in models.MODELS:
            for kind in ("DDP", "FSDP2"):
                steps = {side: _training_step(name, kind, place) for side, place in self._places.items()}
                self._read(f"step of {name}, {kind}", 0, steps, most=_STEPS)
                if kind == "DDP":
                    with _busy_python():
                        self._read(f"step of {name}, {kind}, beside busy Python", 0, steps, most=_STEPS)
                del steps


@contextmanager
def _busy_python() -> Iterator[None]:
    """Another thread of this rank runs pure Python."""
    stop = threading.Event()

    def spin() -> None:
        count = 0
        while not stop.is_set():
            count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _training_step(name: str, kind: str, place: Place) -> Step:
    torch.manual_seed(0)
    model = models.MODELS[name]()
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=place.group)
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(place.group, "cpu")
        for module in model.modules():
            if isinstance(module, (torch.nn.TransformerEncoderLayer, models._Bottleneck)):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = models.example(name)

    def step() -> None:
        optimizer.zero_grad()
        model(given).float().square().mean().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    serve_torch(Spec, lambda spec, out: Rank(spec, out).take_part(), _TIMEOUT)
