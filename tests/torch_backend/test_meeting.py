# SPDX-License-Identifier: MIT
"""Ranks that find each other at the last moment, or not at all: every operation ends. Groups of one process suffice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import ProcessGroupBaguaNet
from tests.support.ranks import refusal
from tests.torch_backend.inside import no_rendezvous, ranks_meet_at_the_deadline

_LONG = timedelta(seconds=60)

Make = Callable[[int], Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes the group of one of two ranks, which is aborted in the end."""
    store = dist.HashStore()
    with ExitStack() as stack:

        def made(rank: int) -> Any:
            group = ProcessGroupBaguaNet(store, rank, 2, _LONG, "here")
            stack.callback(group.abort)
            return group

        yield made


def _reduces(group: Any, *, later: bool) -> str:
    opts = dist.AllreduceOptions()
    opts.asyncOp = later
    return refusal(lambda: group.allreduce([torch.ones(1)], opts))


def _compares(group: Any) -> str:
    group.compare_calls()
    return _reduces(group, later=True)


def _exchanges(group: Any) -> str:
    peer, tensor = 1 - group.rank(), torch.ones(1)
    call = group.send if group.rank() == 0 else group.recv
    return refusal(lambda: call([tensor], peer, 0))


_USES: dict[str, Callable[[Any], str]] = {
    "a collective": lambda group: _reduces(group, later=False),
    "a collective that nobody waits for": lambda group: _reduces(group, later=True),
    "a comparison of calls": _compares,
    "a message": _exchanges,
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
def test_who_meets_at_the_deadline_goes_on(make: Make, use: Callable[[Any], str]) -> None:
    told: list[str] = []
    with ranks_meet_at_the_deadline() as asked:
        first = make(0)
        thread = threading.Thread(target=lambda: told.append(use(first)))
        thread.start()
        asked.wait()
        told.append(use(make(1)))
        thread.join()
    assert told == ["accepted"] * 2


def test_whatever_keeps_ranks_apart_ends_their_operations(make: Make) -> None:
    with no_rendezvous(ValueError("no number")):
        told = _reduces(make(0), later=True)
    assert "the other ranks cannot be found: ValueError: no number" in told
