# SPDX-License-Identifier: MIT
"""DistributedDataParallel with a backend and with gloo: the same losses, and the speed of both.

torchrun --nproc-per-node 2 examples/ddp_digits.py --backend bagua_net
"""

from __future__ import annotations

import argparse

import digits
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bagua_net.torch  # noqa: F401  (makes the backend known)


def job(backend: str) -> digits.Record:
    dist.init_process_group(backend)
    record = digits.train(DistributedDataParallel(digits.network()))
    dist.destroy_process_group()
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    backend = parser.parse_args().backend
    digits.report(*digits.runs(job, backend))


if __name__ == "__main__":
    main()
