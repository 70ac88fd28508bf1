# SPDX-License-Identifier: MIT
"""attach(): DistributedDataParallel with exact all-reduce and with an algorithm that sends less, and what each sends.

torchrun --nproc-per-node 2 examples/attach_digits.py --algorithm bytegrad
"""

from __future__ import annotations

import argparse
import os

import digits
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import attach


def job(algorithm: str) -> tuple[digits.Record, float]:
    """The losses, and the bytes that this rank sent."""
    model = DistributedDataParallel(digits.network())
    optimizer = digits.optimizer(model)
    comm = attach(model, optimizer, algorithm)
    record = digits.train(model, optimizer)
    sent = comm.stats()["bytes"]
    comm.detach()  # with an algorithm of weights, these are equal on all ranks from here on
    return record, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    parser.add_argument("--algorithm", default="bytegrad", help="such as bytegrad, diloco")
    options = parser.parse_args()
    # As if each rank had a host of its own: ranks of one host share memory over bagua_net, and need not send less.
    os.environ.setdefault("NCCL_HOSTID", os.environ["RANK"])
    dist.init_process_group(options.backend)
    for name in ("allreduce", options.algorithm):
        record, sent = job(name)
        digits.report(record)
        if record.rank == 0:
            print(f"{name}: each rank sent {sent / 1e6:.1f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
