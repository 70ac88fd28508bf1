# SPDX-License-Identifier: MIT
"""Groups of an algorithm's own. A detached algorithm's groups stay open for the next one."""

from __future__ import annotations

import contextlib
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._objects import gathered

#: In errors.
_DESCRIPTION = "an algorithm's"


class _Kind(NamedTuple):
    ranks: tuple[int, ...]
    backend: str
    timeout: timedelta | None


class _World(NamedTuple):
    """What there is as long as a default group."""

    idle: dict[_Kind, list[dist.ProcessGroup]]  # open groups that nobody uses
    made: dict[tuple[int, ...], int]  # groups by their ranks


_worlds: weakref.WeakKeyDictionary[Any, _World] = weakref.WeakKeyDictionary()


class Groups:
    """Groups that one algorithm uses, until :meth:`give_back`: without it, where something has failed, nobody uses them
    again."""

    def __init__(self) -> None:
        self._taken: list[tuple[_World, _Kind, dist.ProcessGroup]] = []

    def like(self, group: dist.ProcessGroup, ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
        """One with the backends and the timeout of another, which nobody else uses. All of its ranks call this, in the
        same order.

        ranks: global ranks; None: those of the group.
        """
        chosen = tuple(dist.get_process_group_ranks(group) if ranks is None else ranks)
        return self._take(_Kind(chosen, _backend_of(group), _timeout_of(group)))

    def on_host(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """One of ``bagua_net``, of the same ranks and with the same timeout: for tensors of the CPU, whatever the
        group's backend is. All of its ranks call this, in the same order."""
        from ..torch import NAME

        return self._take(_Kind(tuple(dist.get_process_group_ranks(group)), f"cpu:{NAME}", _timeout_of(group)))

    def _take(self, kind: _Kind) -> dist.ProcessGroup:
        world = _world()
        idle = world.idle[kind]
        made = idle.pop() if idle else _made(kind)
        self._taken.append((world, kind, made))
        return made

    def give_back(self) -> None:
        """All of them. Nothing is under way on them, and all have succeeded so far. Those of a default group that is
        destroyed have ended with it: no later one gets them."""
        taken, self._taken = self._taken, []
        for world, kind, group in taken:
            world.idle[kind].append(group)


def forget_where_ranks_differ(group: dist.ProcessGroup, near: torch.device) -> None:
    """Of the open groups whose ranks are all in this one, those that some of their ranks have, and others have not:
    after a failure on one rank alone, the others give back theirs. Each would take another group next time, and wait.
    All ranks of the group call this. near: the model's device."""
    world, ranks = _world(), dist.get_process_group_ranks(group)
    inside = [kind for kind in world.idle if set(kind.ranks) <= set(ranks)]
    own = {kind: [each.group_name for each in world.idle[kind]] for kind in inside}
    made = {members: number for members, number in world.made.items() if set(members) <= set(ranks)}
    all_of = dict(zip(ranks, gathered((own, made), group, near), strict=True))
    for kind, names in own.items():
        if any(all_of[rank][0].get(kind, []) != names for rank in kind.ranks):
            world.idle[kind].clear()
    for _, theirs in all_of.values():  # names that no rank has used yet
        for members, number in theirs.items():
            world.made[members] = max(world.made[members], number)


def _world() -> _World:
    return _worlds.setdefault(dist.group.WORLD, _World(defaultdict(list), defaultdict(int)))


def _made(kind: _Kind) -> dist.ProcessGroup:
    if len(kind.ranks) == dist.get_world_size():
        return dist.new_group(list(kind.ranks), timeout=kind.timeout, backend=kind.backend, group_desc=_DESCRIPTION)
    return _made_by_its_ranks(kind)


def _made_by_its_ranks(kind: _Kind) -> dist.ProcessGroup:
    """What ``new_group(use_local_synchronization=True)`` does, under a name of ours. torch's is made of the ranks and
    of how many groups this process has: ranks that are in different numbers of groups wait for each other under
    different names, and a group can get the name of one that has ended, and meet in the store what that one left."""
    number = _world().made[kind.ranks]
    _world().made[kind.ranks] += 1
    ranks = list(kind.ranks)
    with _default_group_unbound():
        group, _ = c10d._new_process_group_helper(
            len(ranks),
            ranks.index(dist.get_rank()),
            ranks,
            kind.backend,
            c10d._get_default_store(),
            f"bagua_net.algorithms:{','.join(map(str, ranks))}:{number}",
            timeout=kind.timeout or c10d._get_default_timeout(kind.backend),
            group_desc=_DESCRIPTION,
        )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


@contextlib.contextmanager
def _default_group_unbound() -> Iterator[None]:
    """Of a default group with a ``device_id``, torch would split NCCL's communicator, in which all of its ranks must
    take part: the others are not here."""
    default = dist.group.WORLD
    assert default is not None
    device, default.bound_device_id = default.bound_device_id, None
    try:
        yield
    finally:
        default.bound_device_id = device


def _backend_of(group: dist.ProcessGroup) -> str:
    """ "gloo", or "cpu:gloo,cuda:nccl" where devices have different ones."""
    backends = str(dist.get_backend_config(group))
    names = {each.split(":")[-1] for each in backends.split(",")}
    return names.pop() if len(names) == 1 else backends


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    seconds = getattr(group, "_timeout_s", None)  # ours
    if seconds is not None:
        return timedelta(seconds=seconds)
    for device in ("cuda", "cpu"):
        with contextlib.suppress(RuntimeError, AttributeError):  # no such device here, or a backend without options
            return group._get_backend(torch.device(device)).options._timeout  # type: ignore[no-any-return]
    return None
