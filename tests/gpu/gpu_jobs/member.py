# SPDX-License-Identifier: MIT
"""A rank's device, its process group, and a barrier that is not a collective."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from . import counters
from .job import Task


class Member:
    """One rank of a job."""

    def __init__(self, task: Task) -> None:
        self.job = task.job
        self.rank = task.rank
        self.ranks = task.job.ranks
        self.cuda = task.job.device == "cuda"
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        self._timeout = datetime.timedelta(seconds=task.seconds)
        self._store = dist.FileStore(str(Path(task.directory) / "store"), self.ranks)
        self._store.set_timeout(self._timeout)
        self._meetings = 0

    @contextmanager
    def group(self, name: str = "world", *, bound: bool = False) -> Iterator[None]:
        """The default process group, inside the block.

        Args:
            name: a different one for each group, so that they do not read each other's rendezvous.
            bound: makes NCCL's communicator at once, and those of sub-groups by splitting it.
        """
        self.join(name, bound=bound)
        yield
        self.synchronize()
        dist.destroy_process_group()

    def join(self, name: str, *, bound: bool = False) -> None:
        if self.job.backend == "bagua_net":
            import bagua_net.torch  # noqa: F401  (registers it; an installed package does it by itself)
        dist.init_process_group(
            self.job.backend,
            store=dist.PrefixStore(name, self._store),
            rank=self.rank,
            world_size=self.ranks,
            timeout=self._timeout,
            device_id=self.device if bound and self.cuda else None,
        )

    def synchronize(self) -> None:
        """Waits for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def meet(self) -> None:
        """Returns once all ranks have called this. It does not use the tested network."""
        self._meetings += 1
        key = f"meeting-{self._meetings}"
        if self._store.add(key, 1) == self.ranks:
            self._store.set(f"{key}-full", "")
        self._store.wait([f"{key}-full"])

    def bytes_sent(self) -> int:
        """Bytes that the plugin has sent, once every rank has received its data; 0 where it is not loaded."""
        self.synchronize()
        self.meet()
        return (counters.read() or {}).get("bytes_sent", 0)

    def splits(self) -> int:
        """The number of times that NCCL has split the default group's communicator; 0 without NCCL."""
        if not self.cuda:
            return 0
        group = dist.distributed_c10d._get_default_group()
        return int(group._get_backend(self.device).comm_split_count())
