# SPDX-License-Identifier: MIT
"""Roll calls through torch's store: which ranks are here and which are missing. Threads and a store suffice."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from bagua_net.torch import _store
from bagua_net.torch._roll_call import RollCall

_LONG = timedelta(seconds=100)


def _functions(thread: threading.Thread) -> Iterator[str]:
    """What it is in the middle of."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


@pytest.mark.gate
def test_all_ranks_have_one_deadline() -> None:
    """The second rank comes in time; the third would if its time began when the second came."""
    store, told = dist.HashStore(), list[str]()
    caller = RollCall(store, "here", 0, 3)
    thread = threading.Thread(target=lambda: told.append(caller.hold(timedelta(seconds=1), name_all=True)))
    thread.start()
    while "_missing" not in _functions(thread):  # by then the time has begun
        time.sleep(0.001)
    time.sleep(0.8)
    store.set("here/1", b"")
    thread.join(0.4)
    store.set("here/2", b"")
    thread.join()
    assert "did not come to monitored_barrier within 1 s" in told[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_is_no_missing_rank(rank: int) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_LONG)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=_LONG)
    client.set("reached", b"")
    del server
    with pytest.raises(dist.DistNetworkError):
        RollCall(client, "here", rank, 2).hold(_LONG, name_all=False)


def test_a_wait_leaves_the_store_to_others() -> None:
    """A rank announces itself on the same connection as the wait for the others."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_LONG)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=_LONG)
    found = list[bool]()
    deadline, given_up = time.monotonic() + _LONG.total_seconds(), _store.GivenUp()
    thread = threading.Thread(target=lambda: found.append(_store.appears(client, "row", deadline, given_up)))
    thread.start()
    while "appears" not in _functions(thread):
        time.sleep(0.001)
    client.set("row", b"")
    thread.join(_LONG.total_seconds() / 2)
    assert found == [True]


def test_a_wait_that_is_given_up() -> None:
    given_up = _store.GivenUp()
    given_up.set()
    assert not _store.appears(dist.HashStore(), "row", time.monotonic() + _LONG.total_seconds(), given_up)


def test_what_is_there_is_found_after_the_deadline() -> None:
    store = dist.HashStore()
    store.set("row", b"")
    assert _store.appears(store, "row", time.monotonic() - 1, _store.GivenUp())
