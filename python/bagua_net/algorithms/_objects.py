# SPDX-License-Identifier: MIT
"""Python objects between the ranks of a group, pickled: what torch.distributed has for it does not work without
numpy, which torch does not require. Ranks of one job trust each other, as where torch sends objects.

``near`` is the device of the model that the ranks train, or None where there is no model: see :func:`_device_of`.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

#: Bytes of a message, at most: of a state that the host has memory for, a device need not hold a second one.
_PIECE = 64 << 20

_Data = bytearray | memoryview


def gathered(own: Any, group: dist.ProcessGroup, near: torch.device | None) -> list[Any]:
    """Those of all ranks, by rank. All ranks of the group call it. They are small."""
    device = _device_of(group, near)
    data = _pickled(own)
    mine = _tensor_of(data).to(device)
    sizes = [mine.new_zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(sizes, _size_of(data, device), group=group)
    counts = [int(each) for each in sizes]
    buffer = mine.new_zeros(max(counts))
    buffer[: mine.numel()] = mine
    buffers = [torch.empty_like(buffer) for _ in counts]
    dist.all_gather(buffers, buffer, group=group)
    return [_unpickled(each[:count]) for each, count in zip(buffers, counts, strict=True)]


def from_first(value: Any, group: dist.ProcessGroup, near: torch.device | None) -> Any:
    """That of the group's first rank. All ranks of the group call it."""
    return from_rank(value, group, 0, near)


def from_rank(value: Any, group: dist.ProcessGroup, rank: int, near: torch.device | None) -> Any:
    """That of a rank of the group, by its number there. All ranks of the group call it."""
    device = _device_of(group, near)
    is_source = group.rank() == rank
    own: _Data = _pickled(value) if is_source else bytearray()
    size = _size_of(own, device)
    dist.broadcast(size, group=group, group_src=rank)
    data = own if is_source else bytearray(int(size))
    for piece in _pieces(data):
        part = piece.to(device)
        dist.broadcast(part, group=group, group_src=rank)
        piece.copy_(part)
    return value if is_source else pickle.loads(data)


def send(value: Any, group: dist.ProcessGroup, rank: int, near: torch.device | None) -> None:
    device = _device_of(group, near)
    data = _pickled(value)
    dist.send(_size_of(data, device), group=group, group_dst=rank)
    for piece in _pieces(data):
        dist.send(piece.to(device), group=group, group_dst=rank)


def receive(group: dist.ProcessGroup, rank: int, near: torch.device | None) -> Any:
    device = _device_of(group, near)
    size = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(size, group=group, group_src=rank)
    data = bytearray(int(size))
    for piece in _pieces(data):
        part = piece.to(device)
        dist.recv(part, group=group, group_src=rank)
        piece.copy_(part)
    return pickle.loads(data)


def _device_of(group: dist.ProcessGroup, near: torch.device | None) -> torch.device:
    """Of the tensors that the group's backend moves. torch knows its type alone, and "cuda" is the first GPU on every
    rank of a script that never calls ``torch.cuda.set_device``: the model's is meant."""
    moved = torch.device(c10d._get_object_coll_device(group))
    return near if near is not None and near.type == moved.type else moved


def _pickled(value: Any) -> memoryview:
    buffer = io.BytesIO()
    pickle.dump(value, buffer)
    return buffer.getbuffer()


def _tensor_of(data: _Data) -> torch.Tensor:
    """The same memory."""
    return torch.frombuffer(data, dtype=torch.uint8)


def _pieces(data: _Data) -> tuple[torch.Tensor, ...]:
    pieces: tuple[torch.Tensor, ...] = _tensor_of(data).split(_PIECE)
    return pieces


def _size_of(data: _Data, device: torch.device) -> torch.Tensor:
    return torch.tensor([len(data)], dtype=torch.int64, device=device)


def _unpickled(packed: torch.Tensor) -> Any:
    data = bytearray(packed.numel())
    _tensor_of(data).copy_(packed)
    return pickle.loads(data)
