# SPDX-License-Identifier: MIT
"""A Lightning job that is preempted, for test_preemption.py: each batch has synchronous collectives.

Usage, with SLURM's variables: python -m tests.algorithms.jobs.preempted DIRECTORY [requeue]. DIRECTORY gets the
checkpoints, and a file ``ready.RANK`` once this rank trains. ``requeue``: SLURM's SIGUSR1 asks for a checkpoint.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment

from bagua_net.lightning import BaguaStrategy

#: Batches after which it trains.
_SOME = 5
#: Of the groups.
_TIMEOUT = timedelta(seconds=60)


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):  # type: ignore[misc]
    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.ones(4))


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self._directory = directory

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if index == _SOME:
            (self._directory / f"ready.{self.global_rank}").touch()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(directory: str, requeue: str = "") -> None:
    where = Path(directory)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=BaguaStrategy("bytegrad", timeout=_TIMEOUT),
        plugins=[SLURMEnvironment(auto_requeue=bool(requeue))],
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=where,
        callbacks=[OnExceptionCheckpoint(where, filename="preempted")],
    )
    trainer.fit(Model(where), torch.utils.data.DataLoader(Endless(), batch_size=4, num_workers=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
