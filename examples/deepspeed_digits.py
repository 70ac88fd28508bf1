# SPDX-License-Identifier: MIT
"""DeepSpeed: the backend is the argument of init_distributed(). ZeRO stage 1, the optimizer's state sharded.

deepspeed --num_accelerators 2 examples/deepspeed_digits.py --backend bagua_net
"""

from __future__ import annotations

import argparse

import deepspeed
import digits
import torch
import torch.distributed as dist

import bagua_net.torch  # noqa: F401  (makes the backend known)

CONFIG = {
    "train_micro_batch_size_per_gpu": digits.BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,  # torch's own SGD
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    parser.add_argument("--local_rank", type=int, help="given by DeepSpeed's launcher")
    deepspeed.init_distributed(parser.parse_args().backend)
    model = digits.network()
    optimizer = torch.optim.SGD(model.parameters(), digits.RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    batches = digits.shuffled(digits.images())
    record = digits.Record()
    for epoch in range(digits.EPOCHS):
        batches.sampler.set_epoch(epoch)
        for batch in batches:
            loss = digits.loss_of(engine, batch)
            engine.backward(loss)
            engine.step()
            record.step(loss)
        record.end_epoch()
    digits.report(record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
