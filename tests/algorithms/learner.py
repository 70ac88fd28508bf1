# SPDX-License-Identifier: MIT
"""A LightningModule of models.py's model and data, and runs of it on ranks that have a process group already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from bagua_net.algorithms import ByteGrad, QAdamOptimizer
from bagua_net.lightning import BaguaStrategy
from tests.algorithms.models import SMALL_BUCKETS, batch, group_of, net
from tests.support.rank import Here

Batch = tuple[torch.Tensor, torch.Tensor]
RATE = 0.05


class Loader:
    """This rank's batches. A checkpoint remembers where it is."""

    def __init__(self, here: Here, count: int) -> None:
        self._here, self._count, self._done = here, count, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        while self._done < self._count:
            self._done += 1
            yield batch(self._here, self._done - 1)
        self._done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._done = state["done"]


class Learner(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def _loss(self, data: Batch) -> torch.Tensor:
        x, y = data
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, data: Batch, number: int) -> torch.Tensor:
        return self._loss(data)

    def validation_step(self, data: Batch, number: int) -> None:
        self.log("loss", self._loss(data), sync_dist=True)

    def test_step(self, data: Batch, number: int) -> None:
        self.log("loss", self._loss(data), sync_dist=True)

    def predict_step(self, data: Batch, number: int) -> torch.Tensor:
        return self.net(data[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), RATE, momentum=0.9)


class WithQAdam(Learner):
    def configure_optimizers(self) -> Any:
        return QAdamOptimizer(self.parameters(), 0.01, warmup_steps=2)


class Fails(Learner):
    def training_step(self, data: Any, number: int) -> torch.Tensor:
        if number == 2:
            raise ZeroDivisionError("of this step")
        return super().training_step(data, number)


def strategy(here: Here, backend: str = "bagua_net", algorithm: Any = "bytegrad", **arguments: Any) -> BaguaStrategy:
    """find_unused_parameters: DDP then keeps the buckets of its first step, and a resumed run has the same."""
    given = {"process_group": group_of(here, backend), "bucket_cap_mb": SMALL_BUCKETS, "find_unused_parameters": True}
    return BaguaStrategy(algorithm, **(given | arguments))


def four_bits(here: Here, backend: str = "bagua_net", **arguments: Any) -> BaguaStrategy:
    return strategy(here, backend, ByteGrad(bits=4, block=32), **arguments)


class SavesAt(pl.Callback):  # type: ignore[misc]
    def __init__(self, path: str, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@contextlib.contextmanager
def launched(here: Here) -> Iterator[None]:
    """As if a launcher had started this rank: Lightning starts none, and takes the group that is there."""
    before = dict(os.environ)
    os.environ["LOCAL_RANK"] = str(here.rank)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def trainer(here: Here, strategy: Any, **arguments: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
    }
    return pl.Trainer(accelerator="cpu", devices=here.size, strategy=strategy, max_epochs=1, **(quiet | arguments))


def fit(here: Here, strategy: Any, steps: int, learner: Learner | None = None, **arguments: Any) -> Learner:
    learner = learner or Learner()
    resumed = arguments.pop("ckpt_path", None)
    trainer(here, strategy, **arguments).fit(learner, Loader(here, steps), ckpt_path=resumed)
    return learner


def weights(learner: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in learner.named_parameters()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))
