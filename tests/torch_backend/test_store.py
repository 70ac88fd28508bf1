# SPDX-License-Identifier: MIT
"""Waits in torch's store, by barriers that name the missing ranks. Groups of one process and a store suffice: such a
barrier uses nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from bagua_net.torch import ProcessGroupBaguaNet
from tests.support.ranks import refusal
from tests.torch_backend.inside import waits_in_the_store

_LONG = timedelta(seconds=20)
#: For who comes and does not wait for the others.
_AT_ONCE = timedelta(microseconds=1)

Groups = Callable[..., list[Any]]


@pytest.fixture
def groups() -> Iterator[Groups]:
    """Makes the groups of ranks 0, 1, and so on, each with the store that it is given."""
    with ExitStack() as stack:

        def make(*stores: dist.Store) -> list[Any]:
            made: list[Any] = []
            for rank, store in enumerate(stores):
                made.append(ProcessGroupBaguaNet(store, rank, len(stores), _LONG, "here"))
                stack.callback(made[-1].abort)
            return made

        yield make


def _come(group: Any, limit: timedelta) -> str:
    return refusal(lambda: group.monitored_barrier(limit, wait_all_ranks=True))


def _server_and_client() -> tuple[dist.TCPStore, dist.TCPStore]:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_LONG)
    return server, dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=_LONG)


@pytest.mark.gate
def test_all_ranks_have_one_deadline(groups: Groups) -> None:
    """The second rank comes in time; the third would if its time began when the second came."""
    first, second, third = groups(*[dist.HashStore()] * 3)
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(_come(first, timedelta(seconds=8))))
    thread.start()
    while not waits_in_the_store(thread):  # by then the time has begun
        time.sleep(0.001)
    time.sleep(3)
    _come(second, _AT_ONCE)
    thread.join(6)  # five seconds are left
    _come(third, _AT_ONCE)
    thread.join()
    assert "rank 2 did not come to monitored_barrier within 8 s" in told[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_is_no_missing_rank(groups: Groups, rank: int) -> None:
    server, client = _server_and_client()
    group = groups(client, client)[rank]
    del server
    assert _come(group, _LONG).startswith("DistNetworkError: ")


def test_a_wait_leaves_the_store_to_others(groups: Groups) -> None:
    """A rank announces itself on the same connection as the wait for the others."""
    server, client = _server_and_client()
    first, second = groups(client, client)
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(_come(first, _LONG)))
    thread.start()
    while not waits_in_the_store(thread):
        time.sleep(0.001)
    told.append(_come(second, _LONG))
    thread.join()
    assert told == ["accepted"] * 2
    del server


def test_who_is_there_is_found_after_the_deadline(groups: Groups) -> None:
    first, second = groups(*[dist.HashStore()] * 2)
    _come(second, _AT_ONCE)
    assert _come(first, _AT_ONCE) == "accepted"
