# SPDX-License-Identifier: MIT
"""Hugging Face accelerate: it takes the process group that is there, so make that one first.

torchrun --nproc-per-node 2 examples/accelerate_digits.py --backend bagua_net
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader

import bagua_net.torch  # noqa: F401  (makes the backend known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    dist.init_process_group(parser.parse_args().backend)  # on CPUs, accelerate would make one of gloo
    accelerator = Accelerator(cpu=True)
    model = digits.network()
    model, optimizer, batches = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), digits.RATE),
        DataLoader(digits.images(), digits.BATCH, shuffle=True, drop_last=True),
    )
    record = digits.Record()
    for _ in range(digits.EPOCHS):
        for batch in batches:
            loss = digits.loss_of(model, batch)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            record.step(loss)
        record.end_epoch()
    digits.report(record)
    accelerator.end_training()


if __name__ == "__main__":
    main()
