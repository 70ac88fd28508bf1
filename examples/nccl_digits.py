# SPDX-License-Identifier: MIT
"""activate(): this job's NCCL uses the plugin. Without GPUs, the same script trains over the backend for CPUs.

torchrun --nproc-per-node 2 examples/nccl_digits.py
"""

from __future__ import annotations

import os

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bagua_net


def device() -> torch.device:
    """The GPU of this rank, or the processor."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(own)
    return own


def main() -> None:
    bagua_net.activate()  # before the first communicator
    own = device()
    dist.init_process_group("nccl" if own.type == "cuda" else "bagua_net")
    digits.report(digits.train(DistributedDataParallel(digits.network().to(own))))
    if dist.get_rank() == 0:
        print("the plugin is", "on" if bagua_net.status().on else "off", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
