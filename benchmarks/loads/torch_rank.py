# SPDX-License-Identifier: MIT
"""A rank's process that uses torch.distributed: from its first line to the end of its groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TextIO, TypeVar

import torch
import torch.distributed as dist

from benchmarks.loads.ipc import serve


class Member(Protocol):
    """What the first line says at least."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def address(self) -> str:
        """Of the store, on rank 0's host."""

    @property
    def port(self) -> int: ...


_Spec = TypeVar("_Spec", bound=Member)


def serve_torch(
    spec_type: Callable[..., _Spec], take_part: Callable[[_Spec, TextIO], None], timeout: timedelta
) -> None:
    """Reads the spec, makes gloo's default group, and takes part, on one processor. Groups have this timeout."""

    def run(out: TextIO) -> None:
        fields = json.loads(sys.stdin.readline())
        spec = spec_type(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
        torch.set_num_threads(1)
        store = dist.TCPStore(spec.address, spec.port, is_master=spec.rank == 0, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=spec.rank, world_size=spec.ranks, timeout=timeout)
        take_part(spec, out)
        dist.destroy_process_group()

    serve(run)
