# SPDX-License-Identifier: MIT
"""What torch asks a group for: name, size, backends. torch's own groups answer in C++."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .._torch_backend import NAME

CPU = torch.device("cpu")


class Identity(dist.ProcessGroup):  # type: ignore[misc]
    """A group with a name and one backend: the group itself."""

    def __init__(self, store: Any, rank: int, size: int, name: str) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self._name, self._description = name, ""
        self._is_part = False  # made of another group, not by torch

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return NAME

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    # ---- torch keeps these in a group's backends; this group has no backend object ----

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802  (C++'s name)
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def get_group_store(self) -> Any:
        return self._store

    # ---- the backend: checkpoints ask for the CPU's, and FSDP2 for its abilities ----

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU] if self._is_complete() else []

    def _is_complete(self) -> bool:
        """False while torch makes the group: torch 2.15 would attach its flight recorder, which fails here."""
        return self._is_part or self in dist.distributed_c10d._world.pg_map

    def _get_backend(self, device: torch.device) -> Identity:
        """Raises RuntimeError for any device but the CPU, as torch's own method does and its callers expect."""
        if torch.device(device).type != CPU.type:
            raise RuntimeError(f"the group {self._name} has no backend for {device}: {NAME} serves only CPU tensors")
        return self

    def name(self) -> str:
        return NAME

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    @property
    def supports_shrinking(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False
