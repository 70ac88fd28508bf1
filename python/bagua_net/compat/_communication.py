# SPDX-License-Identifier: MIT
"""bagua.torch_api.communication: Bagua's collectives in terms of torch.distributed, of CPU tensors too.

Bagua's tensors are flat in the collectives that cut or join them: of as many elements for each rank. ``comm`` is what
a group's ``get_global_communicator`` returns; None is all ranks. ``src`` and ``dst`` are ranks of it. A rank that is
not among them does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from ..algorithms._names import all_gather_single, reduce_scatter_single
from ..algorithms._objects import from_rank
from ..torch import NAME


class ReduceOp(IntEnum):
    """With Bagua's numbers."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BOR = 7
    BAND = 8
    BXOR = 9
    AVG = 10


def _op(op: int) -> Any:
    return getattr(dist.ReduceOp, ReduceOp(op).name)


# ---- groups ----


class Communicator:
    """The ranks of a collective: what Bagua calls a communicator."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.torch_group = group

    def rank(self) -> int:
        return int(self.torch_group.rank())

    def nranks(self) -> int:
        return int(self.torch_group.size())


class CommMember:
    """Marks of Bagua."""

    NON_COMM_MEMBER = object()


class BaguaProcessGroup:
    """A group of torch.distributed."""

    def __init__(self, group: Any) -> None:
        self.torch_group = group

    def get_global_communicator(self) -> Any:
        """Of all its ranks; on a rank that is not among them a mark, with which collectives do nothing."""
        if self.torch_group is dist.GroupMember.NON_GROUP_MEMBER:
            return CommMember.NON_COMM_MEMBER
        return Communicator(self.torch_group)

    def get_intra_node_communicator(self) -> Any:
        return _no_nodes()

    def get_inter_node_communicator(self) -> Any:
        return _no_nodes()


def _no_nodes() -> Any:
    raise RuntimeError(
        "bagua_net.compat: communicators of a node and between nodes are not kept; torch.distributed.new_subgroups() "
        "makes groups of nodes, and from_torch_group takes them"
    )


def init_process_group(
    store: dist.Store | None = None, rank: int = -1, world_size: int = -1, local_world_size: int = -1
) -> None:
    """Makes torch's default group, unless there is one: ``bagua_net`` for CPU tensors, NCCL for CUDA ones.

    Args:
        store: where the ranks meet; None: where the launcher says.
        rank: with a store; world_size and local_world_size likewise.
    """
    if dist.is_initialized():
        return
    backend = f"cpu:{NAME},cuda:nccl" if torch.cuda.is_available() else NAME
    if store is None:
        dist.init_process_group(backend)
        return
    if rank < 0 or world_size < 1 or local_world_size < 1:
        raise ValueError(
            f"bagua_net.compat: init_process_group: with a store, rank, world_size and local_world_size are needed; "
            f"{rank}, {world_size} and {local_world_size} were given"
        )
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local_world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def is_initialized() -> bool:
    return bool(dist.is_initialized())


def _get_default_group() -> BaguaProcessGroup:
    if not dist.is_initialized():
        raise RuntimeError("bagua_net.compat: there is no process group yet; call init_process_group() first")
    return BaguaProcessGroup(dist.group.WORLD)


def new_group(ranks: Sequence[int] | None = None, stream: Any = None) -> BaguaProcessGroup:
    """All ranks of the default group call it, also those that are not in the new one. ``stream`` has no use here."""
    return BaguaProcessGroup(dist.new_group(None if ranks is None else sorted(ranks)))


def from_torch_group(group: Any, stream: Any = None) -> BaguaProcessGroup:
    return BaguaProcessGroup(group)


def _group(comm: Any) -> dist.ProcessGroup | None:
    """None: this rank is not among its ranks."""
    if comm is None:
        return _get_default_group().torch_group
    if comm is CommMember.NON_COMM_MEMBER or comm is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    return comm.torch_group if isinstance(comm, (Communicator, BaguaProcessGroup)) else comm


# ---- messages ----


def send(tensor: torch.Tensor, dst: int, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        dist.send(tensor, group=group, group_dst=dst)


def recv(tensor: torch.Tensor, src: int, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        dist.recv(tensor, group=group, group_src=src)


# ---- from one rank ----


def broadcast(tensor: torch.Tensor, src: int = 0, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        dist.broadcast(tensor, group=group, group_src=src)


def broadcast_coalesced(tensors: Sequence[torch.Tensor], src: int = 0, comm: Any = None) -> None:
    for tensor in tensors:
        broadcast(tensor, src, comm)


def broadcast_object(obj: Any, src: int = 0, comm: Any = None) -> Any:
    """The object of ``src``; on a rank that is not in the group, its own."""
    group = _group(comm)
    return obj if group is None else from_rank(obj, group, src, None)


def scatter(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, src: int, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        parts = _parts(send_tensor, group) if group.rank() == src else None
        dist.scatter(recv_tensor.view(-1), parts, group=group, group_src=src)


# ---- to one rank ----


def reduce(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, dst: int, op: int = ReduceOp.SUM, comm: Any = None
) -> None:
    """Only ``dst`` gets something in recv_tensor."""
    if (group := _group(comm)) is not None:
        reduced = send_tensor.clone()
        dist.reduce(reduced, op=_op(op), group=group, group_dst=dst)
        if group.rank() == dst:
            recv_tensor.copy_(reduced)


def reduce_inplace(tensor: torch.Tensor, dst: int, op: int = ReduceOp.SUM, comm: Any = None) -> None:
    reduce(tensor, tensor, dst, op, comm)


def gather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, dst: int, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        parts = _parts(recv_tensor, group) if group.rank() == dst else None
        dist.gather(send_tensor.view(-1), parts, group=group, group_dst=dst)


# ---- to all ranks ----


def allreduce(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, op: int = ReduceOp.SUM, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        recv_tensor.copy_(send_tensor)
        dist.all_reduce(recv_tensor, _op(op), group=group)


def allreduce_inplace(tensor: torch.Tensor, op: int = ReduceOp.SUM, comm: Any = None) -> None:
    allreduce(tensor, tensor, op, comm)


def allreduce_coalesced_inplace(tensors: Sequence[torch.Tensor], op: int = ReduceOp.SUM, comm: Any = None) -> None:
    for tensor in tensors:
        allreduce_inplace(tensor, op, comm)


def allgather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        all_gather_single(recv_tensor.view(-1), send_tensor.view(-1), group=group)


def allgather_inplace(tensor: torch.Tensor, comm: Any = None) -> None:
    """Of a tensor in which each rank has filled its part."""
    if (group := _group(comm)) is not None:
        allgather(_parts(tensor, group)[group.rank()].clone(), tensor, comm)


def reduce_scatter(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, op: int = ReduceOp.SUM, comm: Any = None
) -> None:
    if (group := _group(comm)) is not None:
        reduce_scatter_single(recv_tensor.view(-1), send_tensor.view(-1), _op(op), group=group)


def reduce_scatter_inplace(tensor: torch.Tensor, op: int = ReduceOp.SUM, comm: Any = None) -> None:
    """This rank's part of the tensor is reduced; the others stay as they are."""
    if (group := _group(comm)) is not None:
        reduce_scatter(tensor.clone(), _parts(tensor, group)[group.rank()], op, comm)


def alltoall(send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        dist.all_to_all_single(recv_tensor.view(-1), send_tensor.view(-1), group=group)


def alltoall_inplace(tensor: torch.Tensor, comm: Any = None) -> None:
    alltoall(tensor.clone(), tensor, comm)


def alltoall_v(
    send_tensor: torch.Tensor,
    send_counts: Sequence[int],
    send_displs: Sequence[int],
    recv_tensor: torch.Tensor,
    recv_counts: Sequence[int],
    recv_displs: Sequence[int],
    comm: Any = None,
) -> None:
    """Counts and displacements are elements, by rank."""
    if (group := _group(comm)) is None:
        return
    sent = torch.cat(_pieces(send_tensor, send_counts, send_displs, group))
    pieces = _pieces(recv_tensor, recv_counts, recv_displs, group)
    received = torch.cat(pieces)
    counts = [[each.numel() for each in pieces], list(send_counts)[: group.size()]]
    dist.all_to_all_single(received, sent, *counts, group=group)
    for piece, each in zip(pieces, received.split(counts[0]), strict=True):
        piece.copy_(each)


def alltoall_v_inplace(tensor: torch.Tensor, counts: Sequence[int], displs: Sequence[int], comm: Any = None) -> None:
    alltoall_v(tensor.clone(), counts, displs, tensor, counts, displs, comm)


def barrier(comm: Any = None) -> None:
    if (group := _group(comm)) is not None:
        dist.barrier(group)


# ---- parts ----


def _parts(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Of equal size, by rank: views of the tensor.

    Raises:
        ValueError: there are no equal parts.
    """
    if tensor.numel() % group.size() != 0:
        raise ValueError(
            f"bagua_net.compat: {tensor.numel()} elements have no equal parts for {group.size()} ranks; pad the tensor"
        )
    return list(tensor.view(-1).chunk(group.size()))


def _pieces(
    tensor: torch.Tensor, counts: Sequence[int], displs: Sequence[int], group: dist.ProcessGroup
) -> list[torch.Tensor]:
    flat = tensor.view(-1)
    return [flat[displs[rank] : displs[rank] + counts[rank]] for rank in range(group.size())]
