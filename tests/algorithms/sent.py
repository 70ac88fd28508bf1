# SPDX-License-Identifier: MIT
"""What a rank sends of a model's gradients with an algorithm, in steps of DDP. As a program, a rank that counts it at
an interface: ``python -m tests.algorithms.sent BACKEND INTERFACE MODEL ALGORITHM …`` in torchrun's environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net import algorithms
from bagua_net._bench.workload import models
from bagua_net.algorithms import AlgorithmHandle, QAdam, QAdamOptimizer, attach


class Gradients(nn.Module):  # type: ignore[misc]
    """Parameters of these shapes, whose gradients come last parameter first."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x + weight.sum()
        return x


def sent_in_a_step(
    shapes: Sequence[tuple[int, ...]], name: str, counted: Callable[[AlgorithmHandle], float], group: Any = None
) -> float:
    """By the count, where one step is as another: after QAdam's warm-up, and in the mean of a round of DiLoCo.

    name: of the algorithm, as in ``attach(model, optimizer, NAME)``.
    """
    algorithm: Any = eval(name, vars(algorithms))
    module = Gradients(shapes)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    if isinstance(algorithm, QAdam):
        optimizer = QAdamOptimizer(module.parameters(), lr=0.1, warmup_steps=1)
    model = DistributedDataParallel(module, process_group=group, broadcast_buffers=False)
    comm = attach(model, optimizer, algorithm)
    steps = getattr(algorithm, "steps", 1)
    counts = []
    for _ in range(2):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.zeros(1)).sum().backward()
            optimizer.step()
        counts.append(counted(comm))
    comm.detach(synchronize=False)
    return (counts[1] - counts[0]) / steps


def _left(interface: str) -> float:
    """Bytes that have left this host through the interface, when all ranks have come here."""
    dist.barrier()
    rows = dict(line.split(":", 1) for line in Path("/proc/net/dev").read_text().splitlines() if ":" in line)
    return float({name.strip(): row for name, row in rows.items()}[interface].split()[8])


def _main(backend: str, interface: str, model: str, *names: str) -> None:
    """A rank on a host of its own: prints what it sends with each algorithm, as JSON."""
    dist.init_process_group(backend)
    shapes = models.shapes(model)
    print(json.dumps({name: sent_in_a_step(shapes, name, lambda comm: _left(interface)) for name in names}))
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
