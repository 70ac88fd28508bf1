# SPDX-License-Identifier: MIT
"""Point-to-point messages: tags, any source, both directions at once, and sends before their receives."""

from __future__ import annotations

import ctypes
import mmap
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ranks import Ranks
from tests.torch_backend import cases, names
from tests.torch_backend.cases import Case, laid_out, values

if TYPE_CHECKING:
    from tests.support.rank import Here

_LONG = timedelta(seconds=60)
#: Longer than any test.
_NEVER_S = 3600.0
#: Between two steps of a thread that shows whether it can run.
_TICK_S = 0.001
#: The byte that says that something has happened.
_SET = 1
#: Elements of float32: none, one, the most that travels with its header (8 KiB), one more, a chunk (512 KiB), one more.
SIZES = (0, 1, 2048, 2049, 131_072, 131_073, 700_001)


def _next(here: Here) -> int:
    return (here.rank + 1) % here.size


def _before(here: Here) -> int:
    return (here.rank - 1) % here.size


def _check(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


# ---- any tensor ----


def around(here: Here, case: Case) -> list[str]:
    """Each rank sends to the next."""
    got = case.empty()
    works = [dist.irecv(got, _before(here)), dist.isend(case.given(here.rank), _next(here))]
    for work in works:
        work.wait()
    wrong = cases.difference(got, case.given(_before(here)), None)
    return [wrong] if wrong else []


_SHAPES = st.one_of(st.lists(st.integers(0, 9), max_size=4).map(tuple), st.sampled_from(SIZES).map(lambda n: (n,)))


@pytest.mark.gate
def test_any_tensor(ranks: Ranks) -> None:
    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], print_blob=False)
    @given(
        st.sampled_from([*cases.INTEGERS, *cases.FLOATS, *cases.OTHERS]),
        _SHAPES,
        st.sampled_from(cases.LAYOUTS),
        st.integers(0, 1000),
    )
    def check(dtype: torch.dtype, shape: tuple[int, ...], layout: str, seed: int) -> None:
        assert ranks.run(around, Case("send", dtype, shape, layout=layout, seed=seed)) == [[]] * ranks.size

    check()


# ---- tags ----


def other_order(here: Here, count: int, seed: int) -> None:
    """All tags are sent in one order and received in another; the waits for the sends come last."""
    numbers = list(range(count))
    sends = []
    for tag in numbers:
        size = SIZES[tag % len(SIZES)]
        sends.append(dist.isend(values(torch.float32, (size,), 100 * here.rank + tag), _next(here), tag=tag))
    random.Random(seed).shuffle(numbers)
    for tag in numbers:
        got = torch.zeros(SIZES[tag % len(SIZES)])
        dist.recv(got, _before(here), tag=tag)
        _check(got, values(torch.float32, tuple(got.shape), 100 * _before(here) + tag))
    for work in sends:
        work.wait()


@pytest.mark.parametrize("seed", range(3))
def test_tags_received_in_another_order_than_sent(ranks: Ranks, seed: int) -> None:
    ranks.run(other_order, 35, seed)


def one_tag(here: Here) -> None:
    """With one tag, small and large messages in turn are received in the order of their sends."""
    sizes = [SIZES[number % len(SIZES)] for number in range(30)]
    sends = [dist.isend(torch.full((size,), float(n)), _next(here), tag=5) for n, size in enumerate(sizes)]
    received = [torch.zeros(size) for size in sizes]
    receives = [dist.irecv(tensor, _before(here), tag=5) for tensor in received]
    for work in (*sends, *receives):
        work.wait()
    for number, tensor in enumerate(received):
        _check(tensor, torch.full_like(tensor, float(number)))


def test_one_tag_keeps_the_order(ranks: Ranks) -> None:
    ranks.run(one_tag)


def tags_of_groups(here: Here) -> None:
    """The same tag in two groups means two messages."""
    other = dist.new_group()
    first, second = torch.zeros(10), torch.zeros(10)
    sends = [dist.isend(torch.full((10,), 1.0), _next(here), tag=1)]
    sends.append(dist.isend(torch.full((10,), 2.0), _next(here), group=other, tag=1))
    dist.recv(second, _before(here), group=other, tag=1)
    dist.recv(first, _before(here), tag=1)
    for work in sends:
        work.wait()
    assert (first.unique().tolist(), second.unique().tolist()) == ([1.0], [2.0])
    dist.destroy_process_group(other)


def test_groups_do_not_mix_their_messages(ranks: Ranks) -> None:
    ranks.run(tags_of_groups)


# ---- any source ----


def any_source(here: Here, rounds: int) -> None:
    """Rank 0 receives from any source; the tensor names the sender."""
    if here.rank != 0:
        for number in range(rounds):
            dist.send(torch.full((SIZES[number % len(SIZES)] + 1,), float(here.rank)), 0, tag=number)
        return
    for number in range(rounds):
        senders = []
        for _ in range(here.size - 1):
            got = torch.zeros(SIZES[number % len(SIZES)] + 1)
            source = dist.recv(got, tag=number)
            assert got.unique().tolist() == [float(source)]
            senders.append(source)
        assert sorted(senders) == list(range(1, here.size))


def test_any_source(ranks: Ranks) -> None:
    ranks.run(any_source, 2 * len(SIZES))


def any_source_first(here: Here) -> None:
    """Receives from any source are posted before any send, together with one that names its source."""
    if here.rank != 0:
        here.hear("posted")
        dist.send(torch.full((5000,), float(here.rank)), 0, tag=3)
        if here.rank == 1:
            dist.send(torch.full((5000,), 100.0), 0, tag=4)
        return
    named = torch.zeros(5000)
    one = dist.irecv(named, 1, tag=4)
    tensors = [torch.zeros(5000) for _ in range(here.size - 1)]
    works = [dist.irecv(tensor, tag=3) for tensor in tensors]
    here.say("posted")
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert tensor.unique().tolist() == [float(work._source_rank())]
    one.wait()
    assert named.unique().tolist() == [100.0]


def test_any_source_is_asked_for_before_it_is_sent(ranks: Ranks) -> None:
    ranks.run(any_source_first)


def any_source_of_subgroup(here: Here) -> None:
    """In a group with a different order of ranks, the source is a rank of the job."""
    group = dist.new_group(list(range(here.size - 1, -1, -1)), **names.UNSORTED)
    if here.rank == 0:
        got = torch.zeros(3)
        assert dist.recv(got, group=group) == 1
        assert got.tolist() == [1.0] * 3
    elif here.rank == 1:
        dist.send(torch.ones(3), 0, group=group)
    dist.destroy_process_group(group)


@pytest.mark.skipif(not names.UNSORTED, reason="new_group has sort_ranks since torch 2.12")
def test_any_source_in_a_group_of_another_order(ranks: Ranks) -> None:
    ranks.run(any_source_of_subgroup)


# ---- amounts and timing ----


def both_ways(here: Here, count: int) -> None:
    """Every rank sends every other one several large messages, all at once."""
    peers = [rank for rank in range(here.size) if rank != here.rank]
    received = {(peer, tag): torch.zeros(900_001) for peer in peers for tag in range(count)}
    works = []
    for (peer, tag), tensor in received.items():
        works.append(dist.isend(torch.full((900_001,), 10.0 * here.rank + tag), peer, tag=tag))
        works.append(dist.irecv(tensor, peer, tag=tag))
    for work in works:
        work.wait()
    for (peer, tag), tensor in received.items():
        _check(tensor, torch.full_like(tensor, 10.0 * peer + tag))


def test_large_messages_both_ways_at_once(ranks: Ranks) -> None:
    ranks.run(both_ways, 3)


def sends_before_receives(here: Here, count: int) -> None:
    """Far more than a receiver keeps (256 KiB) is sent before the first receive is posted; the last tag is received
    first."""
    sizes = [1000 if number % 10 else 50_000 for number in range(count)]
    sends = [dist.isend(torch.full((size,), float(n)), _next(here), tag=n % 7) for n, size in enumerate(sizes)]
    here.meet("all are asked for")
    for tag in range(6, -1, -1):
        for number in range(tag, count, 7):
            got = torch.zeros(sizes[number])
            dist.recv(got, _before(here), tag=tag)
            _check(got, torch.full_like(got, float(number)))
    for work in sends:
        work.wait()


def test_more_sends_than_receives_for_a_while(ranks: Ranks) -> None:
    ranks.run(sends_before_receives, 350)


def small_sends_complete(here: Here) -> None:
    """A small message is sent without a receive: its sender may go on, even to wait for an answer."""
    answer = torch.zeros(1)
    dist.send(torch.tensor([float(here.rank)]), _next(here), tag=1)
    dist.send(torch.zeros(0), _next(here), tag=2)
    dist.recv(answer, _before(here), tag=1)
    dist.recv(torch.zeros(0), _before(here), tag=2)
    assert answer.item() == _before(here)


def test_small_messages_do_not_wait_for_their_receiver(ranks: Ranks) -> None:
    ranks.run(small_sends_complete)


def beside_collectives(here: Here) -> None:
    """A pending receive does not delay collectives, nor the other way round."""
    got = torch.zeros(200_000)
    early = dist.irecv(got, _before(here), tag=1)
    total = torch.ones(100_000)
    dist.all_reduce(total)
    late = dist.all_reduce(total, async_op=True)
    dist.send(torch.full((200_000,), 3.0), _next(here), tag=1)
    early.wait()
    late.wait()
    assert got.unique().tolist() == [3.0]
    assert total.unique().tolist() == [float(here.size**2)]


def test_messages_beside_collectives(ranks: Ranks) -> None:
    ranks.run(beside_collectives)


#: More than a signed integer of 32 bits counts.
_HUGE = 2**31 + 8
_PERIOD = 251  # a prime: no shift by a power of two leaves the pattern as it is


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as rows of the pattern, without the last ones, which are no whole row."""
    return tensor[: tensor.numel() // _PERIOD * _PERIOD].view(-1, _PERIOD)


def _add_pattern(tensor: torch.Tensor, factor: int) -> None:
    """In place, and without any other tensor of that size."""
    pattern = torch.arange(_PERIOD, dtype=torch.uint8) % 100
    for part in (_rows(tensor), tensor[_rows(tensor).numel() :]):
        part.add_(pattern[: part.shape[-1]], alpha=factor)


def huge(here: Here) -> list[int]:
    """How many bytes are wrong, on rank 1 after a message, and on both after a sum."""
    wrong = []
    tensor = torch.zeros(_HUGE, dtype=torch.uint8)
    if here.rank == 0:
        _add_pattern(tensor, 1)
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        _add_pattern(tensor, -1)
        wrong.append(int(tensor.count_nonzero()))
        _add_pattern(tensor, 1)
    dist.all_reduce(tensor)
    _add_pattern(tensor, -2)
    return [*wrong, int(tensor.count_nonzero())]


def _available_gib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 2**20


@pytest.mark.nightly
@pytest.mark.parametrize("hosts", [1, 2])
def test_more_bytes_than_31_bits_count(hosts: int) -> None:
    """Through shared memory, and through the network."""
    if _available_gib() < 12:
        pytest.skip("less than 12 GiB of memory is available")
    with Ranks(2, hosts=hosts) as ranks:
        assert ranks.run(huge, seconds=300) == [[0], [0, 0]]


# ---- several at once ----


def batch(here: Here) -> None:
    peers = [rank for rank in range(here.size) if rank != here.rank]
    received = {peer: torch.zeros(20_000) for peer in peers}
    operations = []
    for peer in peers:
        operations.append(dist.P2POp(dist.irecv, received[peer], peer))
        operations.append(dist.P2POp(dist.isend, torch.full((20_000,), float(here.rank)), peer))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer, tensor in received.items():
        assert tensor.unique().tolist() == [float(peer)]


def test_batch_isend_irecv(ranks: Ranks) -> None:
    ranks.run(batch)


def batch_of_two(here: Here) -> None:
    """Only ranks 0 and 1 take part, like neighbours in a pipeline, while the others are elsewhere."""
    if here.rank < 2:
        got = torch.zeros(7)
        operations = [
            dist.P2POp(dist.irecv, got, 1 - here.rank, tag=9),
            dist.P2POp(dist.isend, torch.full((7,), float(here.rank)), 1 - here.rank, tag=9),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert got.unique().tolist() == [1.0 - here.rank]


def test_two_of_all_ranks_exchange(ranks: Ranks) -> None:
    ranks.run(batch_of_two)


# ---- memory ----


def receives_into_views(here: Here) -> None:
    """The memory around a view that is received into does not change."""
    board = torch.full((50, 60), -1.0)
    work = dist.isend(torch.arange(1000.0).view(20, 50)[:, 10:40], _next(here))
    dist.recv(board[5:25, 7:37], _before(here))
    work.wait()
    _check(board[5:25, 7:37], torch.arange(1000.0).view(20, 50)[:, 10:40])
    outside = torch.ones_like(board, dtype=torch.bool)
    outside[5:25, 7:37] = False
    assert board[outside].unique().tolist() == [-1.0]


def test_a_view_is_received_into(ranks: Ranks) -> None:
    ranks.run(receives_into_views)


def forgets(here: Here) -> None:
    """The sender keeps no reference to its tensors, so that their memory could be reused during the send."""
    works: list[Any] = [dist.isend(torch.full((300_000,), float(tag)), _next(here), tag=tag) for tag in range(6)]
    junk = [torch.full((300_000,), -1.0) for _ in range(6)]
    for tag in range(6):
        got = laid_out(torch.zeros(300_000), "every other")
        dist.recv(got, _before(here), tag=tag)
        assert got.unique().tolist() == [float(tag)]
    for work in works:
        work.wait()
    assert len(junk) == 6


def test_tensors_live_until_they_are_sent(ranks: Ranks) -> None:
    ranks.run(forgets)


# ---- peers that come late ----


def asked_for_early(here: Here) -> str:
    """Rank 0's timeout is a second; it posts a receive early, for example for a stop signal that it polls for."""
    group = dist.new_group(timeout=_LONG)
    dist.barrier(group)
    if here.rank == 0:
        group.set_timeout(timedelta(seconds=1))
    told = ""
    if here.rank == 0:
        stop, data = torch.zeros(3), torch.zeros(200_000)
        early, late = (dist.irecv(tensor, 1, group=group, tag=tag) for tag, tensor in enumerate((stop, data)))
        with pytest.raises(dist.DistBackendError) as caught:
            late.wait()
        told = str(caught.value)
        assert not early.is_completed()
        here.say("late")
        for work in (late, early):
            assert work.wait(_LONG)
        assert (stop.tolist(), data.unique().tolist()) == ([1.0] * 3, [2.0])
    elif here.rank == 1:
        here.hear("late")
        dist.send(torch.full((200_000,), 2.0), 0, group=group, tag=1)
        dist.send(torch.ones(3), 0, group=group, tag=0)
    here.meet("over")
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
def test_a_message_s_time_begins_when_it_is_waited_for(ranks: Ranks) -> None:
    told = ranks.run(asked_for_early)[0]
    assert re.match(r"bagua_net, group .*: rank 0 waited 1 s in vain for rank 1; does it send with this tag, 1\?", told)


BEGINNINGS = {
    "irecv": lambda here, data: dist.irecv(data, 1) if here.rank == 0 else dist.isend(data, 0),
    "all_reduce": lambda here, data: dist.all_reduce(data, async_op=True),
}


def python_goes_on(here: Here, beginning: str) -> None:
    """Rank 1 begins after rank 0 has run Python for many times the interpreter's switch interval."""
    data = torch.full((200_000,), float(here.rank))
    assert BEGINNINGS[beginning](here, data.clone()).wait(_LONG)  # the first one connects
    if here.rank == 1:
        here.hear("it ran")
    work = BEGINNINGS[beginning](here, data)
    if here.rank == 0:
        for _ in range(1_000_000):
            pass
        here.say("it ran")
    assert work.wait(_LONG)
    assert data.unique().tolist() == [1.0]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_waiting_for_a_peer_leaves_python_to_others(ranks: Ranks, beginning: str) -> None:
    ranks.run(python_goes_on, beginning)


# ---- a thread that keeps the interpreter ----


@contextmanager
def _alone() -> Iterator[list[int]]:
    """No other Python thread runs in the block, unless the block itself lets it. Gives the steps of one that tries."""
    steps, over, interval = [0], threading.Event(), sys.getswitchinterval()

    def step() -> None:
        while not over.is_set():
            steps[0] += 1
            time.sleep(_TICK_S)

    thread = threading.Thread(target=step)
    thread.start()
    sys.setswitchinterval(_NEVER_S)
    before = steps[0]
    while steps[0] < before + 2:  # from its second step on, its waits for the interpreter are that long
        time.sleep(_TICK_S)
    try:
        yield steps
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


def _keep_the_interpreter_until(flag: mmap.mmap, seconds: int) -> bool:
    """Neither a byte of a mapping nor this sleep makes Python let another thread run. False: the flag was not set."""
    nap = ctypes.PyDLL(None).usleep
    for _ in range(seconds * 1000):
        if flag[0] == _SET:
            return True
        nap(1000)
    return False


def kept_from_python(here: Here, beginning: str, path: str) -> None:
    """Rank 1 says in a file that all has ended, which the main thread of rank 0 waits for with the interpreter."""
    data = [torch.full((200_000,), float(here.rank + n)) for n in range(5)]
    assert BEGINNINGS[beginning](here, data[0].clone()).wait(_LONG)  # the first one connects
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 1) as flag:
        if here.rank == 0:
            with _alone() as steps:
                works = [BEGINNINGS[beginning](here, tensor) for tensor in data]
                before = steps[0]
                ended = _keep_the_interpreter_until(flag, 40)
                after = steps[0]
            assert before == after
            assert ended
        else:
            works = [BEGINNINGS[beginning](here, tensor) for tensor in data]
            for work in works:
                assert work.wait(_LONG)
            flag[0] = _SET
        for work in works:
            assert work.wait(_LONG)
    wanted = [1.0 + 2 * n if beginning == "all_reduce" else 1.0 + n for n in range(5)]
    assert [tensor.unique().tolist() for tensor in data] == [[value] for value in wanted]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_operations_end_without_python(ranks: Ranks, beginning: str, tmp_path: Path) -> None:
    """What was posted is carried out while a thread of its process computes and keeps the interpreter."""
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0")
    ranks.run(kept_from_python, beginning, str(flag))
