# SPDX-License-Identifier: MIT
"""What the jobs of this folder share: their options, their data, and what they print for the test to compare."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import digits
import torch
import torch.distributed as dist
from torch import nn

_BATCH = 16

# Ranks of one host share memory, and send no codes.
os.environ["NCCL_HOSTID"] = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))


class Options(argparse.Namespace):
    directory: Path
    resume: bool


def options() -> Options:
    """A run saves on its way and goes on to the end; a second one resumes from there, and must end likewise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, help="of the checkpoints")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(namespace=Options())


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """Of this rank's images at a step."""
    pixels, labels = digits.images().tensors
    number = step * dist.get_world_size() + dist.get_rank()
    chosen = torch.arange(number * _BATCH, (number + 1) * _BATCH) % len(pixels)
    return digits.loss_of(model, [pixels[chosen], labels[chosen]])


def report(name: str, weights: dict[str, torch.Tensor]) -> None:
    """Prints a digest of the weights, on rank 0. All ranks have the same."""
    flat = torch.cat([weights[each].detach().reshape(-1).float() for each in sorted(weights)])
    own = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
    all_of = [""] * dist.get_world_size()
    dist.all_gather_object(all_of, own)
    assert len(set(all_of)) == 1, f"the ranks' weights differ: {all_of}"
    if dist.get_rank() == 0:
        print(f"{name} {own}", flush=True)
