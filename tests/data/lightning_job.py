# SPDX-License-Identifier: MIT
"""Two ranks of Lightning that write which samples they saw.

Usage: python -m tests.data.lightning_job sampler|batch_sampler|reloaded DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader

from bagua_net.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from tests.data.balanced import COSTS, EPOCHS, at_most_40, threes


class Recorder(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, way: str, directory: Path) -> None:
        super().__init__()
        self.way, self.directory = way, directory
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def train_dataloader(self) -> DataLoader:
        sampler = LoadBalancingDistributedSampler(COSTS, COSTS)
        if self.way == "sampler":
            return DataLoader(range(len(COSTS)), 2, sampler=sampler)
        batches = LoadBalancingDistributedBatchSampler(sampler, at_most_40 if self.way == "reloaded" else threes)
        if self.way == "reloaded":
            batches.set_epoch(self.current_epoch)
        return DataLoader(range(len(COSTS)), batch_sampler=batches)

    def on_train_epoch_start(self) -> None:
        self.seen.append([])

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        self.seen[-1] += batch.tolist()
        return self.layer(batch.float().unsqueeze(1)).sum()

    def on_train_end(self) -> None:
        (self.directory / f"{self.global_rank}.json").write_text(json.dumps(self.seen))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-6)


def main(way: str, directory: str) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        reload_dataloaders_every_n_epochs=int(way == "reloaded"),
        use_distributed_sampler=way == "sampler",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Recorder(way, Path(directory)))


if __name__ == "__main__":
    main(*sys.argv[1:])
