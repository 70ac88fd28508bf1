# SPDX-License-Identifier: MIT
"""The process group: torch's operations, in terms of the library's collectives.

torch lets Python subclass ``ProcessGroup``, a whole group. Python calls its methods by name and C++ (DDP's reducer,
functional collectives) through torch's trampolines; methods that 2.13 renamed have their old names as well. What
torch's dispatcher does for its own backends, namely splitting, tools and other devices, is done here, in
``_observers.py`` and in ``_mixed.py``.

From 2.14 on, Python can also subclass ``Backend``, a group's part for one type of device. This package does not: torch
hands the work of such a backend to the caller in a wrapper that only waits, so that ``is_completed`` is never true and
a receive from any source has no source. An extension in C++ is bound to one version of torch, and would need a compiler
wherever the package is installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from ._identity import CPU, Identity
from ._member import Member

_G = TypeVar("_G", bound="ProcessGroupBaguaNet")
_NO_TIME = timedelta(0)


class Part(NamedTuple):
    """The arguments of a group that is made of another."""

    store: Any
    rank: int
    size: int
    timeout: timedelta
    name: str


class ProcessGroupBaguaNet(Member, Identity):
    """A group of ranks, made by ``init_process_group("bagua_net")`` and ``new_group``."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        Identity.__init__(self, store, rank, size, name)
        Member.__init__(self, store, rank, size, timeout, name)
        self._splits = 0
        self._splits_of: Counter[tuple[int, ...]] = Counter()

    # ---- groups made of this one; torch's names and arguments ----

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> ProcessGroupBaguaNet | None:
        """A group of these ranks of this group, which all of them call; None on the other ranks.

        Raises:
            ValueError: ``new_ranks`` is empty, has a rank twice, or one that this group does not have; or a device is
                not the CPU.
        """
        for device in map(torch.device, device_types or []):
            if device.type != CPU.type:
                raise ValueError(f"bagua_net, {self._label}: split_group: it has no backend for {device}")
        part = self._part(new_ranks, timeout, group_name)
        return None if part is None else self._described(ProcessGroupBaguaNet(*part), group_desc)

    def _part(self, new_ranks: Sequence[int], timeout: timedelta | None, name: str | None) -> Part | None:
        self._splits += 1
        ranks = sorted(new_ranks)
        if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= self._size:
            raise ValueError(
                f"bagua_net, {self._label}: split_group: {list(new_ranks)} must be different ranks of this group, "
                f"which has the ranks 0 to {self._size - 1}"
            )
        if self._rank not in ranks:
            return None
        # All of these ranks have called it as often; whoever is not one of them may not have.
        again = self._splits_of[tuple(ranks)]
        self._splits_of[tuple(ranks)] += 1
        name = name or f"{self._name}:split:{ranks}{f':{again}' if again else ''}"
        store = dist.PrefixStore(f"{name}/", self._store)
        return Part(store, ranks.index(self._rank), len(ranks), self._limit(timeout), name)

    def _described(self, part: _G, desc: str | None) -> _G:
        part._is_part = True
        part._set_group_desc(desc or f"{self._description}:split:{self._splits}")
        if self._fingerprints is not None:
            part.compare_calls()
        return part

    def merge_remote_group(
        self,
        store: Any,
        size: int,
        timeout: timedelta | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> ProcessGroupBaguaNet:
        """One group of all ``size`` ranks, of this group and others, that call this with the same store."""
        rank = store.add("mergeGroupRank", 1) - 1  # torch's name: ranks with its own backends may count here as well
        name = group_name or f"{self._name}:merge"
        merged = ProcessGroupBaguaNet(store, rank, size, self._limit(timeout), name)
        return self._described(merged, group_desc or f"{self._description}:merge")

    def _limit(self, timeout: timedelta | None) -> timedelta:
        return timeout if timeout is not None and timeout > _NO_TIME else timedelta(seconds=self._timeout_s)

    # C++'s name.
    splitGroup = split_group  # noqa: N815
