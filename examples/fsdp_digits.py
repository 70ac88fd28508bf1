# SPDX-License-Identifier: MIT
"""FSDP2, weights sharded among the ranks, with a backend and with gloo: the same losses, and the speed of both.

torchrun --nproc-per-node 2 examples/fsdp_digits.py --backend bagua_net
"""

from __future__ import annotations

import argparse

import digits
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bagua_net.torch  # noqa: F401  (makes the backend known)


def sharded(model: nn.Sequential) -> nn.Module:
    """Each rank keeps its part of each layer, and fetches the others' when the layer is due."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def job(backend: str) -> digits.Record:
    dist.init_process_group(backend)
    record = digits.train(sharded(digits.network()))
    dist.destroy_process_group()
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bagua_net")
    backend = parser.parse_args().backend
    digits.report(*digits.runs(job, backend))


if __name__ == "__main__":
    main()
