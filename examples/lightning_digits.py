# SPDX-License-Identifier: MIT
"""Lightning: the backend is an argument of its DDPStrategy, and of BaguaStrategy, which is that with an algorithm.

python3 examples/lightning_digits.py --devices 2 --algorithm bytegrad
"""

from __future__ import annotations

import argparse

import digits
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

import bagua_net.torch  # noqa: F401  (makes the backend known)
from bagua_net.lightning import BaguaStrategy


class Classifier(lightning.LightningModule):
    """The network, and how to train it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def on_train_start(self) -> None:
        self.record = digits.Record()

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = digits.loss_of(self.network, batch)
        self.record.step(loss)
        return loss

    def on_train_epoch_end(self) -> None:
        self.record.end_epoch()

    def on_train_end(self) -> None:
        digits.report(self.record)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), digits.RATE)


def strategy(algorithm: str | None, backend: str) -> DDPStrategy:
    if algorithm is None:
        return DDPStrategy(process_group_backend=backend)
    return BaguaStrategy(algorithm, process_group_backend=backend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    parser.add_argument("--algorithm", help="such as bytegrad; by default none")
    parser.add_argument("--devices", type=int, default=2, help="ranks on each host")
    parser.add_argument("--nodes", type=int, default=1, help="hosts")
    options = parser.parse_args()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=strategy(options.algorithm, options.backend),
        max_epochs=digits.EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(digits.images(), digits.BATCH, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
