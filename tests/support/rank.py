# SPDX-License-Identifier: MIT
"""One rank of ranks.py: runs the functions that it receives over a pipe, until it is told to end.

Usage: python -m tests.support.rank DESCRIPTOR RANK SIZE PORT SECONDS. DESCRIPTOR is the pipe, PORT the store's, SECONDS
the groups' timeout.
"""

from __future__ import annotations

import importlib
import resource
import sys
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import bagua_net.torch  # noqa: F401  (registers the backend)
from tests.support.ranks import Outcome


@dataclass
class Here:
    """The rank that a test function runs on: its argument."""

    rank: int
    size: int
    timeout: timedelta
    store: dist.Store
    #: For messages between the ranks, within one call.
    board: dist.Store = field(init=False)
    gloo: Any = field(init=False)
    _joined: int = 0

    def init(self, store: dist.Store) -> None:
        """Makes the default group."""
        dist.init_process_group("bagua_net", store=store, rank=self.rank, world_size=self.size, timeout=self.timeout)

    def join(self) -> None:
        """Makes the default group and gloo's again, after a test has destroyed them."""
        self._joined += 1
        self.init(dist.PrefixStore(f"joined/{self._joined}", self.store))
        self.gloo = dist.new_group(backend="gloo", timeout=self.timeout)

    def say(self, what: str) -> None:
        """Tells all ranks. Together with :meth:`hear` it orders their steps without moving a tensor."""
        self.board.set(what, b"")

    def hear(self, *what: str) -> None:
        """Waits until all of that was said."""
        self.board.wait(list(what), self.timeout)

    def meet(self, where: str) -> None:
        """Waits until all ranks are here."""
        self.say(f"{where}/{self.rank}")
        self.hear(*(f"{where}/{rank}" for rank in range(self.size)))


def perform(here: Here, call: tuple[int, str, str, tuple[Any, ...]]) -> Outcome:
    number, module, name, arguments = call
    here.board = dist.PrefixStore(f"call/{number}", here.store)
    try:
        return Outcome(getattr(importlib.import_module(module), name)(here, *arguments))
    except BaseException as error:
        return Outcome(error=f"{type(error).__name__}: {error}", where=traceback.format_exc())


def main(descriptor: int, rank: int, size: int, port: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the harness aborts ranks that hang, to get their stacks
    connection = Connection(descriptor)
    timeout = timedelta(seconds=seconds)
    torch.set_num_threads(1)
    here = Here(rank, size, timeout, dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout))
    here.join()
    connection.send(Outcome())
    while (call := connection.recv()) is not None:
        connection.send(perform(here, call))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
