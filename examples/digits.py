# SPDX-License-Identifier: MIT
"""What the examples train, and what they print of it. Ordinary torch: nothing here knows of a backend.

The data are scikit-learn's 1797 handwritten digits of 8 × 8 pixels, the network is small, and both are the same in
every run, so that the losses of two runs can be compared digit by digit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

BATCH = 16  # images, per rank and step
EPOCHS = 5
RATE = 0.1

#: How far two losses may be apart, as a part of the loss. Of two ranks it takes none of this: two numbers have one sum,
#: whichever comes first. More ranks add in an order that differs from backend to backend, and training amplifies that.
TOLERANCE = 1e-3

#: Of the lines that a Record becomes.
HEADER = "backend    steps/s  loss of each epoch"


def images() -> TensorDataset:
    """Pairs of an image, 64 numbers from 0 to 1, and the digit it shows."""
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))


def network() -> nn.Sequential:
    """From an image to ten scores. Its 84 000 weights are the same on every rank and in every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE)


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    device = next(model.parameters()).device
    pixels, digits = (part.to(device) for part in batch)
    return nn.functional.cross_entropy(model(pixels), digits)


class Record:
    """The losses and the speed of one run. Every rank has one and tells it of each step and each epoch."""

    def __init__(self) -> None:
        self.backend, self.rank = dist.get_backend(), dist.get_rank()
        self.losses: list[float] = []  # of each epoch, the mean of all ranks and steps
        self._sum, self._steps = torch.zeros(()), 0
        self._timed, self._seconds = 0, 0.0
        self._began = time.perf_counter()

    def step(self, loss: torch.Tensor) -> None:
        self._sum = self._sum + loss.detach()  # where the loss is: NCCL adds nothing on the processor
        self._steps += 1

    def end_epoch(self) -> None:
        elapsed = time.perf_counter() - self._began
        if self.losses:  # the first epoch connects, and is not timed
            self._timed, self._seconds = self._timed + self._steps, self._seconds + elapsed
        dist.all_reduce(self._sum)
        self.losses.append(self._sum.item() / (self._steps * dist.get_world_size()))
        self._sum, self._steps = torch.zeros(()), 0
        self._began = time.perf_counter()

    def __str__(self) -> str:
        losses = " ".join(f"{loss:.9f}" for loss in self.losses)
        return f"{self.backend:9}  {self._timed / self._seconds:7.0f}  {losses}"


def shuffled(data: Dataset[tuple[torch.Tensor, ...]]) -> DataLoader[list[torch.Tensor]]:
    """This rank's batches of the data, in another order each time."""
    return DataLoader(data, BATCH, sampler=DistributedSampler(data, drop_last=True), drop_last=True)


def train(model: nn.Module, steps_by: torch.optim.Optimizer | None = None) -> Record:
    """What everybody's script does. The model sees to it that all ranks step alike."""
    steps_by = steps_by or optimizer(model)
    batches = shuffled(images())
    record = Record()
    for epoch in range(EPOCHS):
        batches.sampler.set_epoch(epoch)
        for batch in batches:
            loss = loss_of(model, batch)
            steps_by.zero_grad()
            loss.backward()
            steps_by.step()
            record.step(loss)
        record.end_epoch()
    return record


def runs(job: Callable[[str], Record], backend: str) -> list[Record]:
    """Of the job with the backend and with gloo, which goes first: its threads let go of tensors a little after the
    last operation, and a process that is ending just then is aborted (pytorch/pytorch#179291).
    """
    records = {name: job(name) for name in dict.fromkeys(["gloo", backend])}
    return [records[name] for name in dict.fromkeys([backend, "gloo"])]


def report(*records: Record) -> None:
    """Prints the runs, on rank 0. Where the losses of two differ by more than TOLERANCE, the process ends with that."""
    lines = [HEADER, *map(str, records)]
    if len(records) == 2:
        pairs = zip(records[0].losses, records[1].losses, strict=True)
        apart = max(abs(one - other) / other for one, other in pairs)
        if not apart <= TOLERANCE:
            sys.exit("\n".join([*lines, f"the losses differ by {apart:.1e} of themselves; allowed is {TOLERANCE:.0e}"]))
        lines.append(f"the losses differ by {apart:.1e} of themselves, at most" if apart else "the losses are the same")
    if records[0].rank == 0:
        print(*lines, sep="\n", flush=True)
