# SPDX-License-Identifier: MIT
"""Python objects between the ranks of a group, pickled: what torch.distributed has for it does not work without
numpy, which torch does not require.

``near`` is the device of the model that the ranks train, or None where there is no model: see :func:`_device_of`.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def gathered(own: Any, group: dist.ProcessGroup, near: torch.device | None) -> list[Any]:
    """Those of all ranks, by rank. All ranks of the group call it."""
    mine = _packed(own, group, near)
    sizes = [mine.new_zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(sizes, _size_of(mine), group=group)
    counts = [int(each) for each in sizes]
    buffer = mine.new_zeros(max(counts))
    buffer[: mine.numel()] = mine
    buffers = [torch.empty_like(buffer) for _ in counts]
    dist.all_gather(buffers, buffer, group=group)
    return [_unpacked(each[:count]) for each, count in zip(buffers, counts, strict=True)]


def from_first(value: Any, group: dist.ProcessGroup, near: torch.device | None) -> Any:
    """That of the group's first rank. All ranks of the group call it."""
    return from_rank(value, group, 0, near)


def from_rank(value: Any, group: dist.ProcessGroup, rank: int, near: torch.device | None) -> Any:
    """That of a rank of the group, by its number there. All ranks of the group call it."""
    is_source = group.rank() == rank
    packed = _packed(value if is_source else None, group, near)
    size = _size_of(packed)
    dist.broadcast(size, group=group, group_src=rank)
    buffer = packed if is_source else packed.new_empty(int(size))
    dist.broadcast(buffer, group=group, group_src=rank)
    return value if is_source else _unpacked(buffer)


def send(value: Any, group: dist.ProcessGroup, rank: int, near: torch.device | None) -> None:
    packed = _packed(value, group, near)
    dist.send(_size_of(packed), group=group, group_dst=rank)
    dist.send(packed, group=group, group_dst=rank)


def receive(group: dist.ProcessGroup, rank: int, near: torch.device | None) -> Any:
    size = torch.zeros(1, dtype=torch.int64, device=_device_of(group, near))
    dist.recv(size, group=group, group_src=rank)
    buffer = torch.empty(int(size), dtype=torch.uint8, device=size.device)
    dist.recv(buffer, group=group, group_src=rank)
    return _unpacked(buffer)


def _device_of(group: dist.ProcessGroup, near: torch.device | None) -> torch.device:
    """Of the tensors that the group's backend moves. torch knows its type alone, and "cuda" is the first GPU on every
    rank of a script that never calls ``torch.cuda.set_device``: the model's is meant."""
    moved = torch.device(c10d._get_object_coll_device(group))
    return near if near is not None and near.type == moved.type else moved


def _packed(value: Any, group: dist.ProcessGroup, near: torch.device | None) -> torch.Tensor:
    packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    return packed.to(_device_of(group, near))


def _size_of(packed: torch.Tensor) -> torch.Tensor:
    return torch.tensor([packed.numel()], dtype=torch.int64, device=packed.device)


def _unpacked(packed: torch.Tensor) -> Any:
    """Ranks of one job trust each other, as where torch sends objects."""
    on_host = packed.cpu().contiguous()
    return pickle.loads(ctypes.string_at(on_host.data_ptr(), on_host.numel()))
