# SPDX-License-Identifier: MIT
"""The description of a run: one value, the same on every rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from . import models, ops
from .elements import TYPES, ElementType
from .ops import Op


@dataclass(frozen=True)
class Workload:
    """The unit of timing: an operation of one size, or the buckets of a training step in sequence."""

    label: str
    """The model's name, or ""."""
    counts: tuple[int, ...]
    """Elements of each call, as the operation counts them."""


@dataclass(frozen=True)
class Config:
    nranks: int
    op: str = "allreduce"
    dtype: str = "float32"
    redop: str = "sum"
    sizes: tuple[int, ...] = ()
    """Bytes; not used with a model."""
    model: str = ""
    transports: tuple[str, ...] = ()
    """Requested by name; empty: all that are available."""
    device: str = "cpu"
    """cpu, cuda or emulated."""
    nccl: str = ""
    """The libnccl.so.2 of emulated GPUs, or "auto"."""
    net_plugin: str = ""
    """The plugin of the network nccl+other."""
    dev: int = 0
    """The network's device."""
    block: int = 512
    """Elements with a range of their own, where codes are sent."""
    iters: int = 0
    """Calls per round; 0: as many as fit in ``seconds``."""
    warmup: int = 1
    rounds: int = 5
    seconds: float = 15.0
    """About how long all measuring may take, where ``iters`` is 0."""
    timeout: float = 120.0
    """Seconds without progress after which a rank gives up."""

    @property
    def element(self) -> ElementType:
        return TYPES[self.dtype]

    @property
    def operation(self) -> Op:
        return ops.OPS[self.op]

    def workloads(self) -> list[Workload]:
        if self.model:
            counts = models.buckets(models.parameters(self.model), self.element.size)
            return [Workload(self.model, tuple(counts))]
        counts = [self.operation.count(size, self.nranks, self.element.size) for size in self.sizes]
        return [Workload("", (count,)) for count in dict.fromkeys(counts)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Config:
        fields = json.loads(text)
        for name in ("sizes", "transports"):
            fields[name] = tuple(fields[name])
        return Config(**fields)
