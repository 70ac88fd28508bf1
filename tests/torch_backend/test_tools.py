# SPDX-License-Identifier: MIT
"""What torch's tools see: the profiler, CommDebugMode, sequence numbers, and TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch import all_reduce_quantized
from tests.support.ranks import Ranks, refusal
from tests.torch_backend import names
from tests.torch_backend.cases import NOT_OF_GLOO
from tests.torch_backend.inside import waits_for_an_operation, waits_in_the_store

if TYPE_CHECKING:
    from tests.support.rank import Here

_LONG = timedelta(seconds=300)
#: Seconds between two polls of another thread's progress: that thread needs the GIL.
_PAUSE = 0.001
_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)


def _each(here: Here, group: Any = None) -> None:
    """One of each collective, over all ranks."""
    three, rank, size = torch.ones(3), here.rank, here.size
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_reduce(three, group=group)
    dist.broadcast(three, src=0, group=group)
    dist.reduce(three, dst=0, group=group)
    dist.all_gather(parts, three, group=group)
    dist.gather(three, parts if rank == 0 else None, dst=0, group=group)
    dist.scatter(three, parts if rank == 0 else None, src=0, group=group)
    dist.reduce_scatter(three, parts, group=group)
    dist.all_to_all(list(torch.empty(size, 3)), parts, group=group)
    dist.all_to_all_single(torch.empty(size), torch.ones(size), group=group)
    names.all_gather_single(torch.empty(3 * size), three, group=group)
    names.reduce_scatter_single(three, torch.ones(3 * size), group=group)
    dist.barrier(group)


_NAMES = {
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_single",
    "all_gather_single",
    "reduce_scatter_single",
    "barrier",
}


# ---- the profiler ----


def profiled(here: Here) -> dict[str, int]:
    """The number of spans by name, without the waits: an operation may be over before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _each(here)
        message = torch.ones(3)
        if here.rank == 0:
            dist.send(message, 1)
        elif here.rank == 1:
            dist.recv(message, 0)
    spans = {event.key: event.count for event in profile.key_averages()}
    return {key: count for key, count in spans.items() if key.startswith("bagua_net:") and not key.endswith(" wait")}


def test_the_profiler_shows_each_operation_once(ranks: Ranks) -> None:
    for rank, spans in enumerate(ranks.run(profiled)):
        message = {0: {"send"}, 1: {"recv"}}.get(rank, set())
        assert spans == {f"bagua_net:{name}": 1 for name in _NAMES | message}


def spans_of_a_wait(here: Here) -> list[str]:
    """The spans of rank 0 in an asynchronous operation, in their order. Rank 1 joins once rank 0 is in its wait."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            with torch.profiler.record_function("meanwhile"):
                thread = threading.Thread(target=_say_once_it_waits, args=(here, threading.get_ident()))
                thread.start()
            work.wait()
            thread.join()
        else:
            here.hear("waits")
            dist.all_reduce(torch.ones(3))
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    return [event.name for event in events if event.name.startswith(("bagua_net:", "meanwhile"))]


def _say_once_it_waits(here: Here, waiting: int) -> None:
    """Polls until that thread waits for an operation of the library."""
    while not waits_for_an_operation(waiting):
        time.sleep(_PAUSE)
    here.say("waits")


@_TWO
def test_an_asynchronous_operation_has_two_spans(ranks: Ranks) -> None:
    of_the_first, of_the_second = ranks.run(spans_of_a_wait, seconds=40)
    assert of_the_first == ["bagua_net:all_reduce", "meanwhile", "bagua_net:all_reduce wait"]
    assert of_the_second == ["bagua_net:all_reduce"]


def waited_later(here: Here) -> None:
    """An operation that ends after the profiler, and one that ends under another."""
    for again in (False, True):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            work = dist.all_reduce(torch.ones(3), async_op=True) if here.rank == 0 else None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if again else nullcontext():
            here.meet(f"profiled {again}")
            (work or dist.all_reduce(torch.ones(3), async_op=True)).wait()


@_TWO
def test_an_operation_may_end_after_the_profiler(ranks: Ranks) -> None:
    ranks.run(waited_later)


def failed_span(here: Here) -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        told = refusal(lambda: dist.all_reduce(torch.ones(3), group=group)) if here.rank == 0 else ""
    here.meet("failed")
    dist.destroy_process_group(group)
    return told


@_TWO
def test_a_span_of_an_operation_that_fails(ranks: Ranks) -> None:
    assert ranks.run(failed_span)[0].startswith("DistBackendError: ")


# ---- CommDebugMode ----


def counted(here: Here) -> list[dict[str, int]]:
    """Its counts of the same calls over this group and over gloo's."""
    from torch.distributed.tensor.debug import CommDebugMode

    counts = []
    for group in (None, here.gloo):
        with CommDebugMode() as mode:
            _each(here, group)
            dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
            dist.all_reduce_coalesced([torch.ones(3), torch.ones(4)], group=group)
        dist.all_reduce(torch.ones(3), group=group)  # nobody counts any more
        counts.append({str(operator): count for operator, count in mode.get_comm_counts().items()})
    return counts


@pytest.mark.skipif("all_to_all" in NOT_OF_GLOO, reason=f"gloo of torch {torch.__version__} has no all_to_all")
def test_comm_debug_mode_counts(ranks: Ranks) -> None:
    """As with gloo, whose calls torch counts itself: all but the barrier."""
    for ours, theirs in ranks.run(counted):
        assert ours == theirs
        assert sum(ours.values()) == len(_NAMES) - 1 + 2


# ---- sequence numbers ----


def numbered(here: Here) -> tuple[int, int]:
    group = dist.new_group()
    group._set_sequence_number_for_group()
    before = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    after = group._get_sequence_number_for_group()
    dist.destroy_process_group(group)
    return before, after


def test_collectives_are_numbered(ranks: Ranks) -> None:
    assert ranks.run(numbered) == [(0, 4)] * ranks.size


# ---- torch's own way to set a timeout ----


def timeout_set_by_torch(here: Here) -> tuple[list[str], str]:
    """The warnings, and what rank 0 is told, which waits for a rank that does not come: two seconds where one was
    warned that the timeout is as before.
    """
    group = dist.new_group(timeout=_LONG)
    dist.barrier(group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    told = ""
    if here.rank == 0:
        work, limit = dist.barrier(group, async_op=True), timedelta(seconds=2 if caught else 0)
        told = refusal(lambda: work.wait(limit))
    here.meet("told")
    group.abort()
    dist.destroy_process_group(group)
    return [str(warning.message) for warning in caught], told


@pytest.mark.gate
@_TWO
def test_torch_sets_the_timeout_or_says_that_it_does_not(ranks: Ranks) -> None:
    """torch 2.13 sets it for gloo and NCCL only; the group's own set_timeout does it there."""
    warned, told = ranks.run(timeout_set_by_torch, seconds=60)[0]
    if any("only supported for either nccl or gloo" in text for text in warned):
        assert "not over after 2 s" in told
    else:
        assert told.startswith("DistBackendError: bagua_net, group "), told
        assert "not over" not in told


# ---- TORCH_DISTRIBUTED_DEBUG=DETAIL ----


@pytest.fixture(scope="module")
def watched() -> Iterator[Ranks]:
    with Ranks(3, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        yield ranks


def agreed(here: Here) -> None:
    for _ in range(2):
        _each(here)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


@pytest.mark.nightly
def test_detail_lets_equal_calls_pass(watched: Ranks) -> None:
    watched.run(agreed)


def of_different_shapes(here: Here) -> list[str]:
    """Calls that move equally many bytes."""
    shape = (2, 3) if here.rank == 1 else (3, 2)
    told = [refusal(lambda: dist.all_reduce(torch.ones(shape)))]
    kind = torch.int32 if here.rank == 2 else torch.float32
    told.append(refusal(lambda: dist.broadcast(torch.ones(4, dtype=kind), src=0)))
    dist.barrier()
    return told


def test_detail_names_different_calls(watched: Ranks) -> None:
    for shapes, types in watched.run(of_different_shapes):
        for text, parts in ((shapes, (r"\[3, 2\]", r"\[2, 3\]")), (types, ("[Ff]loat", "[Ii]nt"))):
            assert text != "accepted"
            for part in parts:
                assert re.search(part, text), text


def called_in_a_handler(here: Here) -> str:
    """While rank 0 compares its barrier with those of the others, which come later."""
    told: list[str] = []
    main = threading.current_thread()

    def handle(*_: Any) -> None:
        told.append(refusal(dist.barrier))
        here.say("handled")

    def send_signal() -> None:
        while not waits_in_the_store(main):
            time.sleep(0.001)
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)

    if here.rank != 0:
        here.hear("handled")
        dist.barrier()
        return ""
    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=send_signal)
    thread.start()
    dist.barrier()
    thread.join()
    signal.signal(signal.SIGUSR1, before)
    return told[0]


@pytest.mark.gate
def test_a_handler_s_collective_does_not_overtake_one_that_is_compared(watched: Ranks) -> None:
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in watched.run(called_in_a_handler)[0]


def in_a_callback(here: Here) -> str:
    """Rank 0 knows the end of the first one before it asks for the future, and the others do not."""
    work = dist.all_reduce(torch.ones(1 << 22), async_op=True)
    if here.rank == 0:
        work.wait()
    future = work.get_future().then(lambda _: dist.all_reduce(torch.ones(3)))
    told = refusal(lambda: dist.all_reduce(torch.ones(5)))
    future.wait()
    return told


def test_detail_knows_the_order_of_what_callbacks_start(watched: Ranks) -> None:
    assert watched.run(in_a_callback, seconds=60) == ["accepted"] * watched.size


def of_different_codecs(here: Here) -> str:
    told = refusal(lambda: all_reduce_quantized(torch.ones(3), bits=4 if here.rank == 1 else 8, block=512))
    dist.barrier()
    return told


def test_detail_names_the_codec(watched: Ranks) -> None:
    for told in watched.run(of_different_codecs):
        assert "all_reduce_quantized(float32 [3], AVG, 8 bits, blocks of 512)" in told, told
        assert "all_reduce_quantized(float32 [3], AVG, 4 bits, blocks of 512)" in told, told


def one_is_missing(here: Here) -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    told = "" if here.rank == 2 else refusal(lambda: dist.all_reduce(torch.ones(3), group=group))
    here.meet("told")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.nightly
def test_detail_names_who_is_missing(watched: Ranks) -> None:
    told = watched.run(one_is_missing)
    assert re.search(r"rank 2 .*did not|[Rr]anks? 2 failed", told[0]), told[0]


def split_and_different(here: Here) -> list[str]:
    """Ranks 0 and 2 are ranks 0 and 1 of a part of the group; the calls compared are the part's own."""
    part = dist.group.WORLD.split_group([0, 2], timeout=timedelta(seconds=20))
    told = []
    if part is not None:
        total = torch.ones(3)
        told.append(refusal(lambda: part.allreduce([total])))
        assert total.tolist() == [2.0] * 3
        shape = (2, 3) if here.rank == 2 else (3, 2)
        told.append(refusal(lambda: part.allreduce([torch.ones(shape)])))
        told.append(refusal(lambda: part.barrier()))
        part.shutdown()
    dist.barrier()
    return told


def test_detail_of_a_part_of_a_group(watched: Ranks) -> None:
    told = watched.run(split_and_different, seconds=60)
    assert told[1] == []
    for equal, different, after in (told[0], told[2]):
        assert equal == "accepted"
        assert re.search(r"collective 2 differs between the ranks: .*rank 0 calls .*\[3, 2\]", different), different
        assert re.search(r"rank 1 calls .*\[2, 3\]", different), different
        assert after == "accepted"  # nothing has been moved that the ranks would disagree about


def called_after_the_end(here: Here) -> str:
    """Rank 0's group has ended, and nobody else calls."""
    group = dist.new_group(timeout=_LONG)
    told = ""
    if here.rank == 0:
        group.shutdown()
        told = refusal(lambda: dist.all_reduce(torch.ones(3), group=group))
    here.meet("told")
    dist.destroy_process_group(group)
    return told


def test_detail_does_not_ask_others_about_a_group_that_has_ended(watched: Ranks) -> None:
    told = watched.run(called_after_the_end, seconds=40)[0]
    assert re.match("DistBackendError: bagua_net, group .* was shut down; make a new group", told), told


def ended_as_it_compares(here: Here) -> str:
    """A thread of rank 0 waits for the others' calls, which would take minutes."""
    group = dist.new_group(timeout=_LONG)
    told: list[str] = []
    if here.rank == 0:
        thread = threading.Thread(target=lambda: told.append(refusal(lambda: group.allreduce([torch.ones(3)]))))
        thread.start()
        while not waits_in_the_store(thread, "_theirs"):
            time.sleep(_PAUSE)
        group.shutdown()
        thread.join()
    here.meet("told")
    dist.destroy_process_group(group)
    return "".join(told)


@pytest.mark.nightly
def test_detail_s_wait_ends_with_the_group(watched: Ranks) -> None:
    told = watched.run(ended_as_it_compares, seconds=40)[0]
    assert "aborted while other ranks had not called it" in told, told


def called_in_a_child(here: Here) -> list[str]:
    """A child of fork(), which shares its parent's connection to the store, and none of its threads. One of these ends
    the group just then, and waits for what it sends to be received."""
    group, message = dist.new_group(), torch.ones(1_000_000)
    dist.barrier(group, async_op=True).get_future().wait()
    if here.rank != 0:
        here.hear("forked")
        if here.rank == 1:
            dist.recv(message, 0, group=group)
        dist.destroy_process_group(group)
        return []
    dist.isend(message, 1, group=group)
    thread = threading.Thread(target=group.shutdown)
    thread.start()
    while "was shut down" not in refusal(lambda: dist.isend(torch.ones(1), 1, tag=1, group=group)):
        time.sleep(_PAUSE)  # until it waits
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # otherwise a hang would outlive the test
        calls = (lambda: dist.all_reduce(torch.ones(1), group=group), group.shutdown, group.abort)
        os.write(writer, "\n".join(map(refusal, calls)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    here.say("forked")
    thread.join()
    dist.destroy_process_group(group)
    return said


@pytest.mark.nightly
def test_detail_in_a_forked_child(watched: Ranks) -> None:
    said = watched.run(called_in_a_child, seconds=60)[0]
    assert len(said) == 3, said
    assert "belongs to the process that forked this one; make a group here" in said[0]
    assert said[1:] == ["accepted", "accepted"]
