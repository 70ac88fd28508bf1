# SPDX-License-Identifier: MIT
"""Python objects between the ranks of a group, pickled: what torch.distributed has for it does not work without
numpy, which torch does not require."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def gathered(own: Any, group: dist.ProcessGroup) -> list[Any]:
    """Those of all ranks, by rank. All ranks of the group call it."""
    mine = _packed(own, group)
    sizes = [mine.new_zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(sizes, _size_of(mine), group=group)
    counts = [int(each) for each in sizes]
    buffer = mine.new_zeros(max(counts))
    buffer[: mine.numel()] = mine
    buffers = [torch.empty_like(buffer) for _ in counts]
    dist.all_gather(buffers, buffer, group=group)
    return [_unpacked(each[:count]) for each, count in zip(buffers, counts, strict=True)]


def from_first(value: Any, group: dist.ProcessGroup) -> Any:
    """That of the group's first rank. All ranks of the group call it."""
    return from_rank(value, group, 0)


def from_rank(value: Any, group: dist.ProcessGroup, rank: int) -> Any:
    """That of a rank of the group, by its number there. All ranks of the group call it."""
    is_source = group.rank() == rank
    packed = _packed(value if is_source else None, group)
    size = _size_of(packed)
    dist.broadcast(size, group=group, group_src=rank)
    buffer = packed if is_source else packed.new_empty(int(size))
    dist.broadcast(buffer, group=group, group_src=rank)
    return value if is_source else _unpacked(buffer)


def send(value: Any, group: dist.ProcessGroup, rank: int) -> None:
    packed = _packed(value, group)
    dist.send(_size_of(packed), group=group, group_dst=rank)
    dist.send(packed, group=group, group_dst=rank)


def receive(group: dist.ProcessGroup, rank: int) -> Any:
    size = torch.zeros(1, dtype=torch.int64, device=_device_of(group))
    dist.recv(size, group=group, group_src=rank)
    buffer = torch.empty(int(size), dtype=torch.uint8, device=size.device)
    dist.recv(buffer, group=group, group_src=rank)
    return _unpacked(buffer)


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Of the tensors that the group's backend moves."""
    return torch.device(c10d._get_object_coll_device(group))


def _packed(value: Any, group: dist.ProcessGroup) -> torch.Tensor:
    packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    return packed.to(_device_of(group))


def _size_of(packed: torch.Tensor) -> torch.Tensor:
    return torch.tensor([packed.numel()], dtype=torch.int64, device=packed.device)


def _unpacked(packed: torch.Tensor) -> Any:
    """Ranks of one job trust each other, as where torch sends objects."""
    on_host = packed.cpu().contiguous()
    return pickle.loads(ctypes.string_at(on_host.data_ptr(), on_host.numel()))
