# SPDX-License-Identifier: MIT
"""Stores that outlive the processes which wrote to them: every later life meets, wherever the ones before ended."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import ProcessGroupBaguaNet
from bagua_net.torch._meeting import Meeting
from tests.support.ranks import environment, refusal
from tests.support.tiers import variants
from tests.torch_backend.inside import waits_in_the_store

_LONG = timedelta(seconds=60)
#: Seconds from the last rank's coming to the end of all groups' first collectives: a quarter of their timeout, for a
#: machine with other work.
_BEGINS = 15.0

Make = Callable[[int, int], Any]


# ---- groups of one process, whose "death" leaves what they wrote ----


@pytest.fixture
def store() -> dist.Store:
    return dist.HashStore()


@pytest.fixture
def make(store: dist.Store) -> Iterator[Make]:
    """Makes the group of a rank, which is aborted in the end."""
    with ExitStack() as stack:

        def made(rank: int, size: int) -> Any:
            group = ProcessGroupBaguaNet(store, rank, size, _LONG, "here")
            stack.callback(group.abort)
            return group

        yield made


def _sums(groups: list[Any]) -> list[float]:
    """One collective of all of them."""
    tensors = [torch.ones(1) for _ in groups]
    works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait(timedelta(seconds=20))
    return [float(tensor) for tensor in tensors]


def _all(calls: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("dead", variants([0], [1, 2], gate=[[1], [2], [0, 1], [0, 2], [0, 1, 2]]))
@pytest.mark.parametrize("order", variants([0, 1, 2], gate=[[2, 1, 0], [1, 0, 2]]))
def test_those_who_died_before_they_met_are_not_waited_for(make: Make, dead: list[int], order: list[int]) -> None:
    """The first lives of some ranks end before the others have made the group."""
    for rank in dead:
        make(rank, 3).abort()
    groups = {rank: make(rank, 3) for rank in order}
    assert _sums([groups[rank] for rank in range(3)]) == [3.0] * 3


def test_who_waits_meets_the_next_life_of_who_died(make: Make) -> None:
    """Rank 2 has come when rank 1 dies and starts again, and then rank 0 does."""
    third = make(2, 3)
    make(1, 3).abort()
    make(0, 3).abort()
    second = make(1, 3)
    make(0, 3).abort()
    assert _sums([make(0, 3), second, third]) == [3.0] * 3


def test_lives_of_different_sizes(make: Make) -> None:
    for size in (3, 2, 4, 3):
        groups = [make(rank, size) for rank in range(size)]
        assert _sums(groups) == [float(size)] * size
        for group in groups:
            group.abort()
        make(1, size).abort()


@pytest.mark.parametrize("times", variants(5, nightly=[100]))
def test_groups_of_one_name_that_nobody_used(make: Make, times: int) -> None:
    """Each rank makes and ends them at its own pace, and the last ones meet."""

    def live(rank: int) -> None:
        for _ in range(times):
            make(rank, 3).shutdown()
        last[rank] = make(rank, 3)

    last: dict[int, Any] = {}
    _all([lambda rank=rank: live(rank) for rank in range(3)])  # type: ignore[misc]
    assert _sums([last[rank] for rank in range(3)]) == [3.0] * 3


def test_a_group_that_ends_while_the_watch_begins(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second group of this process starts a thread, and a signal handler or another thread ends the first one."""
    start = threading.Thread.start

    def ends_the_first(thread: threading.Thread) -> None:
        if thread.name == "bagua_net watch":
            first.abort()
            watches.append(thread)
        start(thread)

    watches: list[threading.Thread] = []
    assert not any(thread.name == "bagua_net watch" for thread in threading.enumerate())
    first = make(0, 2)
    monkeypatch.setattr(threading.Thread, "start", ends_the_first)
    make(1, 2)
    for thread in watches:
        thread.join(20)
    assert [thread.is_alive() for thread in watches] == [False]


def test_who_leaves_at_once_does_not_keep_the_others_from_messages(make: Make) -> None:
    groups: dict[int, Any] = {}
    leaver = threading.Thread(target=make(2, 3).shutdown)
    leaver.start()
    while leaver.is_alive() and not waits_in_the_store(leaver):
        time.sleep(0.001)
    _all([lambda rank=rank: groups.update({rank: make(rank, 3)}) for rank in range(2)])  # type: ignore[misc]
    received = torch.zeros(1)
    work = groups[1].recv([received], 0, 0)
    groups[0].send([torch.ones(1)], 1, 0).wait()
    work.wait()
    leaver.join()
    assert received.item() == 1


def test_who_has_met_knows_it_when_the_others_make_the_group_anew(store: dist.Store) -> None:
    """Rank 0 makes it anew before rank 1 looks again, and rank 1 must not take the new group for its own."""
    first, second = Meeting(store, 0, 2), Meeting(store, 1, 2)
    steps = [first.step(), second.step(), first.step(), Meeting(store, 0, 2).step(), second.step()]
    assert steps == [False, False, True, False, True]
    assert second.identities == first.identities


def test_who_made_the_group_anew_has_left_it(make: Make) -> None:
    """Its earlier group has met the others, who have not used it yet."""
    first, second = make(0, 2), make(1, 2)
    first.shutdown()
    make(0, 2)
    told = refusal(lambda: second.allreduce([torch.ones(1)]).wait())
    assert "rank 0 has left this group" in told


def test_a_store_does_not_grow_with_lives(make: Make, store: dist.Store) -> None:
    counts = []
    for _ in range(3):
        groups = [make(rank, 3) for rank in range(3)]
        for group in groups:
            group.compare_calls()
        _all([lambda group=group: group.monitored_barrier() for group in groups])  # type: ignore[misc]
        for _ in range(3):
            _all([lambda group=group: group.allreduce([torch.ones(1)]).wait() for group in groups])  # type: ignore[misc]
        for group in groups:
            group.abort()
        counts.append(store.num_keys())
    assert counts[1:] == counts[:1] * 2


# ---- processes ----


class Job:
    """Workers of lives.py."""

    def __init__(self, plan: str) -> None:
        self._arguments = ["-m", "tests.torch_backend.lives", plan]

    def agent(self, *options: str) -> subprocess.Popen[str]:
        return self._start({}, "-m", "torch.distributed.run", *options, *self._arguments)

    def rank(self, rank: int, life: int, store: Path) -> subprocess.Popen[str]:
        variables = {"RANK": rank, "WORLD_SIZE": 2, "TORCHELASTIC_RESTART_COUNT": life}
        settings = {name: str(value) for name, value in variables.items()}
        return self._start(settings, *self._arguments, str(store))

    def _start(self, settings: dict[str, str], *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command],
            env=environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _lives(processes: list[subprocess.Popen[str]]) -> dict[int, int]:
    """The life in which each rank came to its end. All began in time."""
    try:
        printed = "".join(process.communicate(timeout=200)[0] for process in processes)
    finally:
        for process in processes:
            process.terminate()  # an agent then ends its workers
            process.wait(60)
    told = [json.loads(found) for found in re.findall(r'\{"rank".*?\}', printed)]  # lines of ranks may be one
    assert len(told) == 2, printed
    assert max(one["met"] for one in told) - max(one["came"] for one in told) < _BEGINS, told
    return {one["rank"]: one["life"] for one in told}


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.nightly
def test_lives_of_torchrun() -> None:
    """Its workers all start again when one of them dies, and its store goes on."""
    job = Job("1:0:before init,0:1:before the second")
    agent = job.agent("--standalone", "--nproc-per-node", "2", "--max-restarts", "2")
    assert _lives([agent]) == {0: 2, 1: 2}


@pytest.mark.nightly
def test_lives_of_two_agents() -> None:
    """A static rendezvous: each agent starts its own worker again, at its own time."""
    job, port = Job("1:0:before init,0:1:before new_group,1:2:within"), _free_port()
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "6", "--rdzv-backend", "static"]
    common += ["--master-addr", "127.0.0.1", "--master-port", port]
    ended = _lives([job.agent("--node-rank", str(rank), *common) for rank in range(2)])
    assert sorted(ended) == [0, 1]


@pytest.mark.nightly
def test_a_file_that_an_earlier_run_left(tmp_path: Path) -> None:
    job, store = Job("0:0:before init,1:1:before new_group,0:1:before the second"), tmp_path / "store"
    for life in range(3):
        processes = [job.rank(rank, life, store) for rank in range(2)]
        if life < 2:
            dead = processes[0] if life == 0 else processes[1]
            printed = dead.communicate(timeout=100)[0]
            assert dead.returncode == 7, printed
            for process in processes:
                process.kill()
                process.wait()
    assert store.exists()
    assert _lives(processes) == {0: 2, 1: 2}
