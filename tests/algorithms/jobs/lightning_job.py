# SPDX-License-Identifier: MIT
"""Lightning starts the ranks, and trains with ByteGrad and then with auto. Both are resumed."""

from __future__ import annotations

from pathlib import Path

import digits
import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from bagua_net.algorithms import Algorithm, Auto
from bagua_net.lightning import BaguaStrategy
from tests.algorithms.jobs import common

_EPOCHS, _STEPS = 3, 16


class Classifier(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return digits.loss_of(self.network, batch)

    def on_train_end(self) -> None:
        self.counted, self.chosen = self.trainer.strategy.bagua.stats(), self.trainer.strategy.bagua.chosen

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), digits.RATE, momentum=0.9)


def fit(name: str, strategy: BaguaStrategy, directory: Path, resume: bool) -> Classifier:
    directory = directory / name
    pl.seed_everything(1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=_EPOCHS,
        limit_train_batches=_STEPS,
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[pl.callbacks.ModelCheckpoint(directory, "{epoch}", save_top_k=-1)],
    )
    model = Classifier()
    data = DataLoader(digits.images(), digits.BATCH, shuffle=True, drop_last=True)
    trainer.fit(model, data, ckpt_path=directory / "epoch=1.ckpt" if resume else None)
    assert dist.get_backend() == "bagua_net"
    common.report(name, dict(model.named_parameters()))
    return model


def main() -> None:
    options = common.options()
    # find_unused_parameters: DDP keeps the buckets of its first step, and a resumed run has the same.
    algorithms: dict[str, str | Algorithm] = {"bytegrad": "bytegrad", "auto": Auto(trial_steps=1)}
    for name, algorithm in algorithms.items():
        strategy = BaguaStrategy(algorithm, find_unused_parameters=True)
        model = fit(name, strategy, options.directory, options.resume)
        assert model.counted["elements"] > 0
        assert model.chosen or name != "auto", "it is still trying"


if __name__ == "__main__":
    main()
