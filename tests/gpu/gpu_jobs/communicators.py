# SPDX-License-Identifier: MIT
"""Other uses of communicators than one collective after another: capture collectives in a graph, split a communicator,
use several at once, abort one in the middle of a collective and make a new one."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from .member import Member

_COUNT = 1 << 18
_REPLAYS = 5
_ROUNDS = 5
_GROUPS = 3
_TURNS = 3


def _mine(member: Member, value: int) -> torch.Tensor:
    """A tensor whose sum over all ranks is :func:`_sum` of the same value."""
    return torch.full((_COUNT,), float(value + member.rank), device=member.device)


def _sum(value: int, ranks: range) -> float:
    return float(sum(value + rank for rank in ranks))


def _right(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def _all_reduce_is_right(member: Member, value: int, group: Any = None, ranks: range | None = None) -> bool:
    tensor = _mine(member, value)
    dist.all_reduce(tensor, group=group)
    member.synchronize()
    return _right(tensor, _sum(value, ranks or range(member.ranks)))


def graph(member: Member) -> dict[str, Any]:
    """Two collectives in a CUDA graph, replayed each time with other data."""
    with member.group():
        tensor = _mine(member, 0)
        gathered = torch.zeros(member.ranks * _COUNT, device=member.device)

        def step() -> None:
            dist.all_reduce(tensor)
            dist.all_gather_into_tensor(gathered, tensor)

        step()  # NCCL connects at the first one, which a graph cannot contain
        member.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):  # torch's watchdog asks CUDA meanwhile
            step()
        right = []
        for turn in range(_REPLAYS):
            tensor.copy_(_mine(member, turn))
            captured.replay()
            member.synchronize()
            expected = _sum(turn, range(member.ranks))
            right.append(_right(tensor, expected) and _right(gathered, expected))
        captured.reset()  # before the communicator that it uses
    return {"replays": right}


def split(member: Member) -> dict[str, Any]:
    """Two halves of a communicator work at the same time, and then the whole again."""
    half = member.ranks // 2
    with member.group(bound=True):
        whole = [_all_reduce_is_right(member, 1)]
        halves = [range(half), range(half, member.ranks)]
        groups = [dist.new_group(list(ranks)) for ranks in halves]
        mine = 0 if member.rank < half else 1
        parts = [_all_reduce_is_right(member, turn, groups[mine], halves[mine]) for turn in range(_ROUNDS)]
        whole.append(_all_reduce_is_right(member, 2))
        return {"whole": whole, "parts": parts, "splits": member.splits()}


def several(member: Member) -> dict[str, Any]:
    """Collectives of several communicators in flight at once, on separate streams."""
    everyone = list(range(member.ranks))
    with member.group():
        groups = [dist.new_group(everyone) for _ in range(_GROUPS)]
        right = []
        for turn in range(_ROUNDS):
            tensors = [_mine(member, 10 * turn + number) for number in range(_GROUPS)]
            works = [
                dist.all_reduce(tensor, group=group, async_op=True)
                for tensor, group in zip(tensors, groups, strict=True)
            ]
            for work in works:
                work.wait()
            member.synchronize()
            right += [
                _right(tensor, _sum(10 * turn + number, range(member.ranks))) for number, tensor in enumerate(tensors)
            ]
    return {"right": right}


def abort(member: Member) -> dict[str, Any]:
    """A collective that only rank 0 has begun is aborted, and the process goes on with a new communicator. Repeated:
    NCCL may unload the plugin with its last communicator."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # or torch's watchdog aborts as well and ends the process
    right, hung = [], []
    for turn in range(_TURNS):
        member.join(f"turn {turn}", bound=True)
        right.append(_all_reduce_is_right(member, turn))
        tensor = _mine(member, turn)
        work = dist.all_reduce(tensor, async_op=True) if member.rank == 0 else None
        member.meet()
        if work is not None:
            hung.append(not work.is_completed())
        member.meet()  # the first abort ends it for the other rank as well
        dist.distributed_c10d._abort_process_group()
        member.synchronize()
        member.meet()
    with member.group("after"):
        right.append(_all_reduce_is_right(member, _TURNS))
    return {"right": right, "hung": hung}
