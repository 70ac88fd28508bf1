# SPDX-License-Identifier: MIT
"""accelerate prepares the model and the optimizer; then attach. save_state and load_state hold the algorithm too.

Once with each kind: averages of gradients, of momentum, and of weights.
"""

from __future__ import annotations

from pathlib import Path

import digits
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from bagua_net.algorithms import (
    Algorithm,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GatheredState,
    QAdam,
    QAdamOptimizer,
    attach,
)
from tests.algorithms.jobs import common

_SAVED, _END = 4, 8  # steps of two batches


def train(name: str, algorithm: Algorithm, saved: Path, resume: bool) -> None:
    # find_unused_parameters: DDP keeps the buckets of its first step, and a resumed run has the same.
    wrapping = DistributedDataParallelKwargs(
        find_unused_parameters=True, bucket_cap_mb=100, broadcast_buffers=algorithm.averages != "weights"
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[wrapping])
    network = digits.network()
    model, optimizer = accelerator.prepare(network, _optimizer(algorithm, network))
    comm = attach(model, optimizer.optimizer, algorithm, scaler=accelerator.scaler)
    accelerator.register_for_checkpointing(GatheredState(comm))
    first = 0
    if resume:
        accelerator.load_state(str(saved))
        first = _SAVED
    for step in range(first, _END):
        if step == _SAVED and not resume:
            accelerator.save_state(str(saved))
        for batch in (2 * step, 2 * step + 1):
            with accelerator.accumulate(model):
                accelerator.backward(common.loss_of(model, batch))
                if algorithm.averages == "gradients":
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    if algorithm.averages == "gradients":
        elements = sum(each.numel() for each in network.parameters())
        assert comm.stats()["elements"] == (_END - first) * elements, "once for two batches"
    comm.pause()  # with averages of weights, what is kept is their mean
    common.report(name, dict(network.named_parameters()))
    comm.detach()


def _optimizer(algorithm: Algorithm, network: torch.nn.Module) -> torch.optim.Optimizer:
    if isinstance(algorithm, QAdam):
        return QAdamOptimizer(network.parameters(), digits.RATE / 10, warmup_steps=2)
    return torch.optim.SGD(network.parameters(), digits.RATE, momentum=0.9)


def main() -> None:
    options = common.options()
    dist.init_process_group("bagua_net")
    of_all_kinds = {
        "bytegrad": ByteGrad(),
        "qadam": QAdam(),
        "diloco": DiLoCo(steps=3),
        "decentralized": Decentralized(),
    }
    for name, algorithm in of_all_kinds.items():
        train(name, algorithm, options.directory / name, options.resume)
    Accelerator(cpu=True).end_training()  # destroys the process group


if __name__ == "__main__":
    main()
