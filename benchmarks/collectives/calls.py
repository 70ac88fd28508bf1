# SPDX-License-Identifier: MIT
"""What is timed: every collective and pattern of messages, in all its forms, as a function of a group and a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

#: One call; it returns when this rank is done.
Step = Callable[[], Any]
#: Messages of a flood, of so many bytes.
FLOOD, FLOOD_BYTES = 4000, 64
#: Asynchronous operations in flight.
PARTS = 8


@dataclass(frozen=True)
class Place:
    """Where it runs."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def peer(self, step: int) -> int:
        return (self.rank + step) % self.size


def _floats(nbytes: int) -> torch.Tensor:
    return torch.ones(max(1, nbytes // 4))


def _blocks(place: Place, nbytes: int) -> list[torch.Tensor]:
    """One for each rank, ``nbytes`` together."""
    return [_floats(nbytes // place.size) for _ in range(place.size)]


def _whole(place: Place, nbytes: int) -> torch.Tensor:
    return _floats(nbytes // place.size).repeat(place.size)


# ---- collectives; `nbytes` is the larger buffer of a rank ----


def _all_reduce(place: Place, nbytes: int) -> Step:
    return partial(dist.all_reduce, _floats(nbytes), group=place.group)


def _broadcast(place: Place, nbytes: int) -> Step:
    return partial(dist.broadcast, _floats(nbytes), src=0, group=place.group)


def _reduce(place: Place, nbytes: int) -> Step:
    return partial(dist.reduce, _floats(nbytes), dst=0, group=place.group)


def _all_gather(place: Place, nbytes: int) -> Step:
    blocks = _blocks(place, nbytes)
    return partial(dist.all_gather, blocks, blocks[0].clone(), group=place.group)


def _all_gather_single(place: Place, nbytes: int) -> Step:
    whole = _whole(place, nbytes)
    return partial(dist.all_gather_into_tensor, whole, whole[: whole.numel() // place.size].clone(), group=place.group)


def _gather(place: Place, nbytes: int) -> Step:
    blocks = _blocks(place, nbytes)
    return partial(dist.gather, blocks[0].clone(), blocks if place.rank == 0 else None, dst=0, group=place.group)


def _scatter(place: Place, nbytes: int) -> Step:
    blocks = _blocks(place, nbytes)
    return partial(dist.scatter, blocks[0].clone(), blocks if place.rank == 0 else None, src=0, group=place.group)


def _reduce_scatter(place: Place, nbytes: int) -> Step:
    blocks = _blocks(place, nbytes)
    return partial(dist.reduce_scatter, blocks[0].clone(), blocks, group=place.group)


def _reduce_scatter_single(place: Place, nbytes: int) -> Step:
    whole = _whole(place, nbytes)
    return partial(dist.reduce_scatter_tensor, whole[: whole.numel() // place.size].clone(), whole, group=place.group)


def _all_to_all(place: Place, nbytes: int) -> Step:
    return partial(dist.all_to_all, _blocks(place, nbytes), _blocks(place, nbytes), group=place.group)


def _all_to_all_single(place: Place, nbytes: int) -> Step:
    return partial(dist.all_to_all_single, _whole(place, nbytes), _whole(place, nbytes), group=place.group)


def _barrier(place: Place, _: int) -> Step:
    return partial(dist.barrier, group=place.group)


def _coalesced(place: Place, nbytes: int) -> Step:
    tensors = [_floats(nbytes // 16) for _ in range(16)]

    def step() -> None:
        with dist._coalescing_manager(place.group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=place.group)

    return step


def _object(place: Place, nbytes: int) -> Step:
    said: list[Any] = [None] * place.size
    return partial(dist.all_gather_object, said, bytes(nbytes // place.size), group=place.group)


# ---- asynchronous: several in flight ----


def _in_parts(make: Callable[[Place, int], Step], place: Place, nbytes: int) -> Step:
    starts = [partial(make(place, nbytes // PARTS), async_op=True) for _ in range(PARTS)]

    def step() -> None:
        for work in [start() for start in starts]:
            if work is not None:  # a rank without a part in it
                work.wait()

    return step


# ---- messages ----


def _to_and_fro(place: Place, nbytes: int) -> Step:
    """Between ranks 0 and 1, which stands for two neighbours of a pipeline."""
    tensor = _floats(nbytes)

    def step() -> None:
        if place.rank > 1:
            return
        for turn in range(2):
            move = dist.send if turn == place.rank else dist.recv
            move(tensor, 1 - place.rank, group=place.group)

    return step


def _around(place: Place, nbytes: int) -> Step:
    """Each rank to the next one, as in ring attention."""
    sent, received = _floats(nbytes), _floats(nbytes)

    def step() -> None:
        moves = [
            dist.P2POp(dist.isend, sent, place.peer(1), place.group),
            dist.P2POp(dist.irecv, received, place.peer(-1), place.group),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()

    return step


def _flood(place: Place, _: int) -> Step:
    """Thousands of small ones to the next rank."""
    tensors = [_floats(FLOOD_BYTES) for _ in range(FLOOD)]

    def step() -> None:
        works = [dist.irecv(tensor, place.peer(-1), group=place.group) for tensor in tensors]
        works += [dist.isend(tensor, place.peer(1), group=place.group) for tensor in tensors]
        for work in works:
            work.wait()

    return step


@dataclass(frozen=True)
class Call:
    name: str
    make: Callable[[Place, int], Step]
    sized: bool = True
    """Does it depend on a size?"""


_COLLECTIVES: Sequence[Call] = (
    Call("all_reduce", _all_reduce),
    Call("broadcast", _broadcast),
    Call("reduce", _reduce),
    Call("all_gather, list", _all_gather),
    Call("all_gather, tensor", _all_gather_single),
    Call("gather, list", _gather),
    Call("scatter, list", _scatter),
    Call("reduce_scatter, list", _reduce_scatter),
    Call("reduce_scatter, tensor", _reduce_scatter_single),
    Call("all_to_all, list", _all_to_all),
    Call("all_to_all, tensor", _all_to_all_single),
)

CALLS: Sequence[Call] = (
    *_COLLECTIVES,
    *(Call(f"{call.name}, {PARTS} asynchronous parts", partial(_in_parts, call.make)) for call in _COLLECTIVES),
    Call("all_reduce, 16 coalesced parts", _coalesced),
    Call("all_gather_object", _object),
    Call("barrier", _barrier, sized=False),
    Call("send and recv", _to_and_fro),
    Call("isend and irecv around", _around),
    Call(f"{FLOOD} messages of {FLOOD_BYTES} bytes", _flood, sized=False),
)
