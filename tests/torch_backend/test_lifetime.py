# SPDX-License-Identifier: MIT
"""How groups begin and end: nothing is lost, nothing is left behind, and no process is kept from ending."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tests.support import ranks as harness
from tests.support.ranks import Ranks
from tests.support.tiers import variants
from tests.torch_backend.inside import sends_are_given_up_after

if TYPE_CHECKING:
    from tests.support.rank import Here

_EXIT_SECONDS = 60


# ---- the end of a group ----


def asked_for_before_the_end(here: Here) -> None:
    """The group is destroyed while most of its operations have not begun."""
    group = dist.new_group()
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    totals = [torch.full((300_000,), float(n)) for n in range(8)]
    received = [torch.zeros(300_000) for _ in range(3)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in totals]
    works += [dist.irecv(tensor, source, group=group, tag=tag) for tag, tensor in enumerate(received)]
    sends = [dist.isend(torch.full((300_000,), 10.0 + n), peer, group=group, tag=n) for n in range(3)]
    for work in works[len(totals) :]:
        work.wait()
    dist.destroy_process_group(group)
    assert all(work.is_completed() and work.is_success() for work in (*works, *sends))
    assert [tensor.unique().tolist() for tensor in totals] == [[float(n * here.size)] for n in range(8)]
    assert [tensor.unique().tolist() for tensor in received] == [[10.0 + n] for n in range(3)]


def test_what_was_asked_for_is_done_before_a_group_ends(ranks: Ranks) -> None:
    ranks.run(asked_for_before_the_end)


def last_words(here: Here) -> None:
    """A sent message arrives although its sender has since closed the group."""
    group = dist.new_group()
    dist.barrier(group)
    tensor = torch.zeros(10_000)
    if here.rank == 0:
        for peer in range(1, here.size):
            dist.send(torch.ones(1), peer, group=group, tag=1)
            dist.recv(torch.ones(1), peer, group=group, tag=2)
    else:
        dist.recv(torch.ones(1), 0, group=group, tag=1)
        dist.send(torch.ones(1), 0, group=group, tag=2)
    here.meet("connected")
    if here.rank == 0:
        for peer in range(1, here.size):
            for number in range(20):
                dist.isend(torch.full((1000,), float(number)), peer, group=group, tag=3)
        tensor.fill_(7.0)
        dist.broadcast(tensor, src=0, group=group)
        dist.destroy_process_group(group)
        here.say("gone")
        return
    with contextlib.suppress(dist.DistStoreError):  # a sender that waits for its receiver never sends it
        here.board.wait(["gone"], timedelta(seconds=3))
    for number in range(20):
        got = torch.zeros(1000)
        dist.recv(got, 0, group=group, tag=3)
        assert got.unique().tolist() == [float(number)]
    dist.broadcast(tensor, src=0, group=group)
    assert tensor.unique().tolist() == [7.0]
    dist.destroy_process_group(group)


def test_what_was_sent_arrives_though_the_sender_is_gone(ranks: Ranks) -> None:
    ranks.run(last_words)


class _Heard(logging.Handler):
    """The lines logged."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def sends_that_nobody_receives(here: Here) -> tuple[list[str], str]:
    """As if rank 0 had raised: it destroys its group on the way out while the others are elsewhere."""
    group = dist.new_group(timeout=timedelta(seconds=300))
    dist.barrier(group)
    heard, told = _Heard(), ""
    if here.rank == 0:
        logger = logging.getLogger("bagua_net.torch")
        logger.addHandler(heard)
        works = [dist.isend(torch.ones(1_000_000), 1, group=group) for _ in range(2)]
        with sends_are_given_up_after(1.0):
            dist.destroy_process_group(group)
        logger.removeHandler(heard)
        with pytest.raises(dist.DistBackendError) as caught:
            works[0].wait()
        told = str(caught.value)
        assert not works[1].is_success()
        here.say("gone")
        return heard.told, told
    here.hear("gone")
    group.abort()
    dist.destroy_process_group(group)
    return heard.told, told


@pytest.mark.gate
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_group_ends_though_nobody_receives_what_it_sends(ranks: Ranks) -> None:
    logged, told = ranks.run(sends_that_nobody_receives, seconds=60)[0]
    assert len(logged) == 1
    assert re.match("group .* ends with 2 sends that nobody has received, and nothing has moved for 1 s", logged[0])
    assert told.startswith("bagua_net, group ")


def used_after_the_end(here: Here) -> list[str]:
    group = dist.new_group()
    dist.barrier(group)
    dist.destroy_process_group(group)
    told = []
    for call in (
        lambda: group.allreduce([torch.ones(1)]),
        lambda: group.send([torch.ones(1)], (here.rank + 1) % here.size, 0),
        lambda: group.recv([torch.ones(1)], (here.rank + 1) % here.size, 0),
        group.barrier,
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        told.append(str(caught.value))
    group.shutdown()
    group.abort()
    return told


def test_a_group_that_has_ended_says_so(ranks: Ranks) -> None:
    for told in ranks.run(used_after_the_end):
        assert all("was shut down; make a new group" in text for text in told), told


def unused(here: Here) -> None:
    """Groups that never connected, or only partly."""
    for _ in range(3):
        dist.destroy_process_group(dist.new_group())
    group = dist.new_group()
    if here.rank < 2:
        dist.send(torch.ones(2), 1, group=group) if here.rank == 0 else dist.recv(torch.ones(2), 0, group=group)
    dist.destroy_process_group(group)


def test_groups_that_nobody_used(ranks: Ranks) -> None:
    ranks.run(unused)


# ---- again ----


def use(here: Here) -> None:
    """Some of everything: both threads of a group, connections between all ranks, a second group."""
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    other = dist.new_group()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=other)
    works = [dist.all_reduce(tensor, async_op=True), dist.isend(torch.ones(100_000), peer)]
    got = torch.zeros(100_000)
    dist.recv(got, source)
    for work in works:
        work.wait()
    assert tensor.unique().tolist() == [float(here.size**2)]
    assert got.unique().tolist() == [1.0]


def again(here: Here, times: int) -> None:
    """With one store and one name, like a trainer that starts over in its process."""
    dist.destroy_process_group()
    for _ in range(times):
        here.init(dist.PrefixStore("again", here.board))
        use(here)
        dist.destroy_process_group()
    here.join()


def test_destroy_and_init_again(ranks: Ranks) -> None:
    ranks.run(again, 5)


def with_fewer_ranks_in_between(here: Here) -> None:
    """With one store and one name, like an elastic job whose hosts leave and return."""
    dist.destroy_process_group()
    for times, size in enumerate((here.size, here.size - 1, here.size)):
        if here.rank < size:
            store = dist.PrefixStore("elastic", here.board)
            dist.init_process_group(
                "bagua_net", store=store, rank=here.rank, world_size=size, timeout=timedelta(seconds=20)
            )
            tensor = torch.ones(100)
            dist.all_reduce(tensor)
            assert tensor.unique().tolist() == [float(size)]
            dist.group.WORLD.monitored_barrier()
            dist.destroy_process_group()
        here.meet(f"life {times}")
    here.join()


@pytest.mark.parametrize("ranks", variants(3, nightly=[4]), indirect=True)
def test_one_store_for_groups_of_different_sizes(ranks: Ranks) -> None:
    ranks.run(with_fewer_ranks_in_between)


def _descriptors() -> list[str]:
    """The open descriptors, by kind."""
    kinds = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the directory
            kinds.append(str(link.readlink()).split(":")[0])
    return sorted(kinds)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _settled(wanted: tuple[list[str], int]) -> tuple[list[str], int]:
    """Now or within a few seconds: the kernel removes a thread's last traces later."""
    deadline = time.monotonic() + 10
    while (found := (_descriptors(), _threads())) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def footprints(here: Here) -> dict[str, Any]:
    """Before the first of several full groups, and after the last."""
    dist.destroy_process_group()
    here.init(dist.PrefixStore("first", here.board))
    use(here)
    dist.destroy_process_group()
    gc.collect()
    before = (_descriptors(), _threads())
    for number in range(4):
        here.init(dist.PrefixStore(f"leak/{number}", here.board))
        use(here)
        if number == 3:  # the other way out
            here.meet("all have done")
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
    gc.collect()
    ours = [thread.name for thread in threading.enumerate() if "group" in thread.name]
    after = _settled(before)
    here.join()
    return {"before": before, "after": after, "ours": ours}


def test_no_thread_and_no_descriptor_is_left(ranks: Ranks) -> None:
    for told in ranks.run(footprints):
        assert told["ours"] == []
        assert told["after"] == told["before"]


def collected(here: Here) -> bool:
    """A destroyed group can be collected: nothing that outlives it refers to it."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
    held = weakref.ref(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return held() is None


def test_a_destroyed_group_is_not_kept(ranks: Ranks) -> None:
    assert ranks.run(collected) == [True] * ranks.size


def dropped_behind_others(here: Here) -> list[bool]:
    """Receives that wait for long are asked for first; then sends whose works are dropped. Are their tensors kept?"""
    peer, waiting = 1 - here.rank, torch.zeros(30, 4)
    early = [dist.irecv(tensor, peer, tag=1) for tensor in waiting]
    dropped = []
    for number in range(50):
        tensor = torch.full((100,), float(number))
        dropped.append(weakref.ref(tensor))
        dist.isend(tensor, peer, tag=2)
    del tensor
    for _ in range(50):
        dist.recv(torch.empty(100), peer, tag=2)
    here.meet("all are sent")
    for _ in range(200):  # the group looks at those in flight when it begins others
        dist.send(torch.ones(1), peer, tag=3)
        dist.recv(torch.ones(1), peer, tag=3)
    kept = [tensor() is not None for tensor in dropped]
    for _ in early:
        dist.send(torch.ones(4), peer, tag=1)
    for work in early:
        work.wait()
    return kept


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_dropped_works_are_forgotten_though_older_ones_wait(ranks: Ranks) -> None:
    assert ranks.run(dropped_behind_others, seconds=60) == [[False] * 50] * 2


def _elsewhere(tensor: torch.Tensor) -> int:
    """How many tensors with as many elements have other memory."""
    kin = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.numel() == tensor.numel()]
    return sum(each.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() for each in kin)


def staged(here: Here) -> tuple[int, int]:
    """How many copies of a tensor that is not contiguous there are during an operation, and after it."""
    tensor = torch.ones(11, 13).t()
    gc.collect()
    gc.disable()
    try:
        if here.rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            meanwhile = _elsewhere(tensor)
            here.say("seen")
            work.wait()
        else:
            here.hear("seen")
            dist.all_reduce(tensor)
            meanwhile = 1
        assert tensor.unique().tolist() == [float(here.size)]
        return meanwhile, _elsewhere(tensor)
    finally:
        gc.enable()


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_staged_copies_do_not_wait_for_the_garbage_collector(ranks: Ranks) -> None:
    assert ranks.run(staged) == [(1, 0)] * 2


# ---- children ----


class _Squares(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index * index)])


def with_workers(here: Here) -> float:
    """A data loader forks while the group has threads and connections; the workers touch neither."""
    work = dist.all_reduce(torch.ones(100), async_op=True)
    loader = torch.utils.data.DataLoader(_Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    total = torch.zeros(1)
    for batch in loader:
        part = batch.sum().reshape(1)
        dist.all_reduce(part)
        total += part
    work.wait()
    return float(total.item())


def test_a_data_loader_with_workers(ranks: Ranks) -> None:
    wanted = float(sum(index * index for index in range(16)) * ranks.size)
    assert ranks.run(with_workers) == [wanted] * ranks.size


def forked_child_exits(here: Here) -> int:
    """A child of fork() that ends as Python does, with atexit: it leaves its parent's groups alone."""
    dist.all_reduce(torch.ones(100), async_op=True).wait()
    dist.send(torch.ones(10), (here.rank + 1) % here.size)
    dist.recv(torch.ones(10), (here.rank - 1) % here.size)
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    dist.barrier()
    return status


def test_a_forked_child_may_end(ranks: Ranks) -> None:
    assert ranks.run(forked_child_exits, seconds=40) == [0] * ranks.size


# ---- processes that end without destroying their groups ----

_ENDS = """
import atexit, os, sys, torch
import torch.distributed as dist
def finish():
    dist.barrier()
    dist.destroy_process_group()
    print("finished")
if sys.argv[1] == "finish":
    atexit.register(finish)
import bagua_net.torch
rank = int(os.environ["RANK"])
dist.init_process_group("bagua_net", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
tensor = torch.ones(200_000)
dist.all_reduce(tensor)
works = [dist.all_reduce(tensor, async_op=True)]
works.append(dist.isend(torch.ones(3), 1 - rank, tag=1))
works.append(dist.irecv(torch.zeros(3), 1 - rank, tag=1))
for work in works:
    work.wait()
assert tensor.unique().tolist() == [4.0]
if sys.argv[1] == "receive":
    work = dist.irecv(tensor, 1 - rank, tag=2)
elif sys.argv[1] == "send":
    work = dist.isend(tensor, 1 - rank, tag=2)
elif sys.argv[1] == "collective" and rank == 0:
    work = dist.all_reduce(tensor, async_op=True)
elif sys.argv[1] == "queue":
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(20)]
elif sys.argv[1] == "raise":
    raise SystemExit(7)
print("done")
"""


@pytest.mark.gate
@pytest.mark.parametrize(
    "what", variants("nothing", "finish", nightly=["collective", "receive", "send", "queue", "raise"])
)
def test_a_process_that_ends_without_destroying_its_group(what: str, tmp_path: Path) -> None:
    """With anything still open, it ends at once, with its own status and no output of ours; torch may print."""
    command = [sys.executable, "-c", _ENDS, what, str(tmp_path / "store")]
    processes = [
        subprocess.Popen(
            command,
            env=harness.environment({"RANK": str(rank)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=_EXIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (stdout, stderr) in zip(processes, said, strict=True):
        assert process.returncode == (7 if what == "raise" else 0), stderr
        assert not re.search("bagua|Traceback|Exception ignored|Fatal", stderr), stderr
        assert stdout == {"raise": "", "finish": "done\nfinished\n"}.get(what, "done\n")
