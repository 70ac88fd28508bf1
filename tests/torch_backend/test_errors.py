# SPDX-License-Identifier: MIT
"""Errors are raised in the call or in its wait, on every rank concerned, and no rank hangs."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.torch._reasons import Reasons
from tests.support.ranks import Outcome, Ranks, refusal
from tests.support.tiers import variants
from tests.torch_backend.inside import runs_in_the_library

pytestmark = pytest.mark.gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.rank import Here

_SHORT = timedelta(seconds=1)


# ---- ranks that disagree ----


def other_sizes(here: Here, sent: int) -> str:
    """A receive is one element too short; later messages are not affected."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    told = "not concerned"
    if here.rank == 0:
        told = refusal(lambda: dist.send(torch.ones(sent), 1, group=group))
    elif here.rank == 1:
        told = refusal(lambda: dist.recv(torch.ones(sent - 1), 0, group=group))
    after = torch.full((3,), float(here.rank))
    works = [dist.isend(after, (here.rank + 1) % here.size, group=group)]
    got = torch.zeros(3)
    dist.recv(got, (here.rank - 1) % here.size, group=group)
    works[0].wait()
    assert got.tolist() == [float((here.rank - 1) % here.size)] * 3
    dist.destroy_process_group(group)
    return told


class _Told:
    """A rank's meeting, as far as it is told why the rank has failed."""

    rank = 1

    def __init__(self) -> None:
        self.failures: list[str] = []

    def tell_failure(self, why: str) -> None:
        self.failures.append(why)


def test_a_message_s_failure_hides_no_collective_s() -> None:
    meeting: Any = _Told()
    reasons = Reasons(meeting, lambda _: "")
    for reason, ends_group in (("a message's", False), ("another's", False), ("a collective's", True), ("later", True)):
        assert reasons.explain(reason, ends_group=ends_group) == reason
    assert meeting.failures == ["a message's", "a collective's"]


def test_a_receive_of_another_size(ranks: Ranks) -> None:
    """Both sides get an error, unless the message was so small that it had been sent already."""
    told = ranks.run(other_sizes, 100_000)
    assert re.search("DistBackendError: .*rank 0 sends 400000 bytes .*rank 1 expects 399996", told[0])
    assert re.search("DistBackendError: .*rank 1 expects 399996 bytes .*rank 0 sent 400000", told[1])
    told = ranks.run(other_sizes, 100)
    assert told[0] == "accepted"
    assert re.search("DistBackendError: .*rank 1 expects 396 bytes .*rank 0 sent 400", told[1])


def diverged(here: Here, kind: str) -> list[str]:
    """Rank 0 calls something else than the others, of the same size; all call two more operations."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group)
    tensor = torch.ones(1000)
    differs: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(tensor, src=1, group=group),
        "maximum": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group),
        "float64": lambda: dist.all_reduce(torch.ones(500, dtype=torch.float64), group=group),
    }
    calls = [differs[kind] if here.rank == 0 else lambda: dist.all_reduce(tensor, group=group)]
    told = [refusal(call) for call in calls + [lambda: dist.all_reduce(tensor, group=group)] * 2]
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("kind", ["broadcast", "maximum", "float64"])
def test_ranks_that_call_different_operations(ranks: Ranks, kind: str) -> None:
    """Each rank has an error by the next operation at the latest, which names both calls. None has a wrong result."""
    for told in ranks.run(diverged, kind, seconds=60):
        assert told[0] == "accepted" or told[0] == told[1], told
        assert told[1] == told[2], told
        assert told[1].startswith("DistBackendError: bagua_net, group "), told
        assert kind in told[1], told
        assert "sum of float32" in told[1], told


@pytest.fixture(scope="module", params=variants(1, nightly=[2]), ids=["one-host", "two-hosts"])
def pair(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two ranks, which share memory or have only the network."""
    with Ranks(2, hosts=request.param) as ranks:
        yield ranks


def one_more(here: Here, count: int, root: int, later: bool) -> list[str]:
    """Rank 1 broadcasts first; then both reduce twice. What each call told, and the wrong results of those that ended.

    A reduction's right result is that of the same reduction on both ranks, counted without the broadcast.
    """
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group)
    sums = [torch.full((count,), 10.0**n * (here.rank + 1)) for n in range(2)]
    calls: list[tuple[torch.Tensor, float | None, Any]] = [
        (tensor, 3 * 10.0**n, lambda tensor=tensor: dist.all_reduce(tensor, group=group, async_op=later))
        for n, tensor in enumerate(sums)
    ]
    if here.rank == 1:
        source, wanted = torch.full((count,), 7.0), 7.0 if root == 1 else None  # nobody sends what root 0 should
        calls.insert(0, (source, wanted, lambda: dist.broadcast(source, root, group=group, async_op=later)))
    ends = [start().wait for _, _, start in calls] if later else [start for _, _, start in calls]
    told = [refusal(end) for end in ends]
    wrong = [
        f"wrong: {tensor.unique().tolist()[:3]} and not {wanted}"
        for text, (tensor, wanted, _) in zip(told, calls, strict=True)
        if text == "accepted" and tensor.unique().tolist() != [wanted]
    ]
    group.abort()
    dist.destroy_process_group(group)
    return told + wrong


@pytest.mark.parametrize("count", [1000, 200_000])
@pytest.mark.parametrize("root", variants(1, nightly=[0]))
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
def test_a_rank_that_calls_one_operation_more(pair: Ranks, count: int, root: int, later: bool) -> None:
    """Calls of one size, so that the data of one could pass for that of another."""
    told = pair.run(one_more, count, root, later, seconds=60)
    assert [len(of_one) for of_one in told] == [2, 3], told  # none is wrong
    errors = [text for of_one in told for text in of_one if text != "accepted"]
    assert all(text.startswith("DistBackendError: bagua_net, group ") for text in errors), told
    assert any("broadcast" in text and "sum of float32" in text for text in errors), told


def one_leaves(here: Here) -> str:
    """Rank 0 is done and its group is destroyed. The others go on without it."""
    group = dist.new_group()
    peers = [rank for rank in range(here.size) if rank != here.rank]
    for work in [
        *(dist.isend(torch.ones(5), peer, group=group) for peer in peers),
        *(dist.irecv(torch.ones(5), peer, group=group) for peer in peers),
    ]:
        work.wait()
    here.meet("all are connected")
    if here.rank == 0:
        dist.destroy_process_group(group)
        here.say("gone")
        return ""
    here.hear("gone")
    source = dist.irecv(torch.ones(200_000), group=group, tag=1)
    after = 1 + here.rank % (here.size - 1)
    dist.send(torch.ones(200_000), after, group=group, tag=1)
    source.wait()
    told = refusal(lambda: dist.recv(torch.ones(5), 0, group=group))
    here.say(f"done/{here.rank}")
    here.hear(*(f"done/{rank}" for rank in range(1, here.size)))
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", variants(3, nightly=[4]), indirect=True)
def test_a_rank_that_leaves_first(ranks: Ranks) -> None:
    for told in ranks.run(one_leaves)[1:]:
        assert re.match("DistBackendError: bagua_net, group .*lost rank 0", told)


def cannot_hold(here: Here) -> str:
    """The receiving tensor has memory for one number only; the other messages arrive."""
    if here.rank == 0:
        dist.send(torch.ones(8), 1, tag=1)
        dist.send(torch.ones(8), 1, tag=2)
    elif here.rank == 1:
        told = refusal(lambda: dist.recv(torch.zeros(1).expand(8), 0, tag=1))
        dist.recv(torch.zeros(8), 0, tag=2)
        return told
    return ""


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_tensor_that_cannot_hold_what_is_received(ranks: Ranks) -> None:
    """Only that operation fails, not the thread that serves all of them."""
    told = ranks.run(cannot_hold, seconds=40)[1]
    assert re.search("RuntimeError: .*single memory location", told)


class Full(torch.Tensor):  # type: ignore[misc]
    """A tensor that fails to be copied for lack of memory."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            raise MemoryError("no room")
        return super().__torch_function__(func, types, args, kwargs)


def no_memory(here: Here) -> str:
    """An unexpected kind of exception, raised while what was received is stored."""
    if here.rank == 0:
        dist.send(torch.ones(8), 1, tag=1)
        dist.send(torch.ones(8), 1, tag=2)
    elif here.rank == 1:
        full = torch.zeros(16)[::2].as_subclass(Full)
        told = refusal(lambda: dist.group.WORLD.recv([full], 0, 1))
        dist.recv(torch.zeros(8), 0, tag=2)
        return told
    return ""


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_message_that_cannot_be_stored(ranks: Ranks) -> None:
    told = ranks.run(no_memory, seconds=40)[1]
    assert re.search("^MemoryError: no room", told)


# ---- peers that do not come ----


def nobody_comes(here: Here, name: str) -> tuple[str, str]:
    """Rank 0 is the only one that calls."""
    group = dist.new_group()
    dist.barrier(group)
    group.set_timeout(_SHORT)
    told = after = ""
    if here.rank == 0:
        tensor = torch.ones(1000)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(tensor, group=group),
            "all_reduce later": lambda: dist.all_reduce(tensor, group=group, async_op=True),
            "barrier": lambda: dist.barrier(group),
            "recv": lambda: dist.recv(tensor, 1, group=group),
            "recv any": lambda: dist.recv(tensor, group=group),
            "send": lambda: dist.send(torch.ones(1_000_000), 1, group=group),
        }
        told, after = refusal(calls[name]), refusal(calls[name])
    here.meet("rank 0 has given up")
    group.abort()
    dist.destroy_process_group(group)
    return told, after


@pytest.mark.parametrize(
    "name", variants("all_reduce", "recv", "recv any", nightly=["all_reduce later", "barrier", "send"])
)
@pytest.mark.parametrize("ranks", variants(3, nightly=[2]), indirect=True)
def test_a_peer_that_does_not_come(ranks: Ranks, name: str) -> None:
    """The operation fails after the group's timeout, and so do later ones; other groups go on."""
    told, after = ranks.run(nobody_comes, name)[0]
    assert told.startswith("DistBackendError: bagua_net, group"), told
    assert after.startswith("DistBackendError: bagua_net, group"), after
    if name == "recv":
        assert re.search("rank 0 waited 1 s in vain for rank 1; does it send with this tag, 0", told)
    ranks.run(still_good)


def still_good(here: Here) -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [float(here.size)]


def nobody_connects(here: Here) -> list[str]:
    """The first operation of a group connects; the timeout applies to that as well."""
    group = dist.new_group(timeout=_SHORT)
    told = []
    if here.rank == 0:
        told = [refusal(lambda: dist.all_reduce(torch.ones(3), group=group)) for _ in range(2)]
    here.meet("rank 0 has given up")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", variants(3, nightly=[2]), indirect=True)
def test_peers_that_never_connect(ranks: Ranks) -> None:
    """Later errors repeat the first one."""
    told = ranks.run(nobody_connects)[0]
    assert re.match("DistBackendError: bagua_net, group .*connect", told[0])
    assert told[1] == told[0]


def never_made(here: Here) -> tuple[str, str]:
    """The others make another group, without themselves in it."""
    group = dist.new_group(None if here.rank == 0 else [0], timeout=_SHORT)
    if here.rank != 0:
        return "", ""
    told = (
        refusal(lambda: dist.all_reduce(torch.ones(3), group=group)),
        refusal(lambda: dist.send(torch.ones(3), 1, group=group)),
    )
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", variants(3, nightly=[2]), indirect=True)
def test_a_rank_that_never_makes_the_group(ranks: Ranks) -> None:
    for told in ranks.run(never_made, seconds=50)[0]:
        assert re.search("DistBackendError: bagua_net, group .*rank 1 has not made this group within 1 s", told)


def own_timeout(here: Here) -> str:
    """An operation's timeout overrides the group's."""
    group = dist.new_group(timeout=timedelta(seconds=300))
    dist.barrier(group)
    limits = dist.BarrierOptions()
    limits.timeout = _SHORT  # dist.barrier takes one since torch 2.12
    told = refusal(lambda: group.barrier(limits).wait()) if here.rank == 0 else ""
    here.meet("rank 0 has given up")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.quick
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_an_operation_s_own_timeout(ranks: Ranks) -> None:
    assert ranks.run(own_timeout, seconds=60)[0].startswith("DistBackendError: ")


def timed_wait(here: Here) -> str:
    """A wait that times out does not change the operation."""
    tensor = torch.ones(3)
    told = ""
    if here.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        told = refusal(lambda: work.wait(timedelta(milliseconds=50)))
        here.say("waited")
        work.wait()
    else:
        here.hear("waited")
        dist.all_reduce(tensor)
    assert tensor.tolist() == [here.size] * 3
    return told


def test_a_wait_of_limited_time(ranks: Ranks) -> None:
    assert re.search("DistBackendError: .*not over after 0.05 s", ranks.run(timed_wait)[0])


def set_timeout(here: Here, by_torch: bool) -> str:
    group = dist.new_group(timeout=timedelta(seconds=300))
    dist.barrier(group)
    if by_torch:
        dist.set_timeout(_SHORT, group)
    else:
        group.set_timeout(_SHORT)
    told = refusal(lambda: dist.barrier(group)) if here.rank == 0 else ""
    here.meet("rank 0 has given up")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_the_timeout_of_a_group_can_be_set(ranks: Ranks) -> None:
    assert ranks.run(set_timeout, False, seconds=60)[0].startswith("DistBackendError: ")


@pytest.mark.skipif(not hasattr(dist, "set_timeout"), reason="torch has set_timeout since 2.14")
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_the_timeout_of_a_group_can_be_set_by_torch(ranks: Ranks) -> None:
    assert ranks.run(set_timeout, True, seconds=60)[0].startswith("DistBackendError: ")


# ---- abort ----


def aborted(here: Here, name: str) -> tuple[str, str]:
    """Rank 0 waits for a collective that the others never join, until another of its threads aborts the group."""
    group = dist.new_group()
    dist.barrier(group)
    told = after = ""
    if here.rank == 0:
        tensor = torch.ones(1000)
        work: Any = None
        if name == "all_reduce later":
            work = dist.all_reduce(tensor, group=group, async_op=True)
        elif name == "recv":
            work = dist.irecv(tensor, 1, group=group)
        main = threading.get_ident()

        def abort() -> None:
            while name == "all_reduce" and not runs_in_the_library(main):
                time.sleep(0.001)
            group.abort()

        thread = threading.Thread(target=abort)
        thread.start()
        told = refusal(lambda: work or dist.all_reduce(tensor, group=group))
        thread.join()
        after = refusal(lambda: dist.all_reduce(tensor, group=group))
    here.meet("rank 0 is free")
    group.abort()
    dist.destroy_process_group(group)
    return told, after


@pytest.mark.parametrize("name", ["all_reduce", "all_reduce later", "recv"])
@pytest.mark.parametrize("ranks", variants(3, nightly=[2]), indirect=True)
def test_abort_from_another_thread(ranks: Ranks, name: str) -> None:
    told, after = ranks.run(aborted, name, seconds=40)[0]
    assert re.match(r"(DistBackendError|RuntimeError): ", told), told
    assert re.match(r"DistBackendError: .*shut down; make a new group", after), after
    ranks.run(still_good)


def abort_while_queued(here: Here) -> list[str]:
    """Queued operations that have not begun fail as well."""
    group = dist.new_group()
    dist.barrier(group)
    told = []
    if here.rank == 0:
        works = [dist.all_reduce(torch.ones(10), group=group, async_op=True) for _ in range(5)]
        works.append(dist.irecv(torch.ones(10), 1, group=group))
        group.abort()
        told = [refusal(work.wait) for work in works]
    here.meet("rank 0 is free")
    group.abort()
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", variants(3, nightly=[2]), indirect=True)
def test_abort_ends_what_waits_its_turn(ranks: Ranks) -> None:
    told = ranks.run(abort_while_queued, seconds=40)[0]
    assert len(told) == 6
    assert all(text.startswith("DistBackendError: ") for text in told), told


# ---- a peer that dies ----


def until_it_fails(here: Here, what: str, killed: int) -> str:
    """Works with a rank that dies in the middle. All its peers notice, whichever rank they exchange data with."""
    tensor = torch.ones(500_000)
    dist.all_reduce(tensor)
    if here.rank == killed:
        for peer in range(here.size):
            if peer != killed:
                dist.send(tensor, peer)
    else:
        dist.recv(tensor, killed)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 1000)) if what == "backward" else None
    here.say(f"at work/{here.rank}")

    def work() -> None:
        for _ in range(100_000):
            if what == "all_reduce":
                dist.all_reduce(tensor)
            elif what == "later":
                dist.all_reduce(tensor, async_op=True).get_future().wait()
            elif model is not None:
                model(torch.ones(500)).sum().backward()
            elif here.rank != killed:
                dist.recv(tensor, killed)
            else:
                here.hear("never")

    return refusal(work)


@pytest.mark.parametrize("what", variants("backward", nightly=["recv", "all_reduce", "later"]))
@pytest.mark.parametrize("size", variants(3, nightly=[2]))
def test_a_peer_that_dies(size: int, what: str) -> None:
    """DDP's reducer waits for futures in C++, which must get the error as Python does."""
    with Ranks(size) as ranks:
        ranks.begin(until_it_fails, what, 1)
        ranks.hear(*(f"at work/{rank}" for rank in range(size)))
        ranks.kill(1)
        outcomes: dict[int, Outcome] = ranks.collect(50)
        assert sorted(outcomes) == [rank for rank in range(size) if rank != 1]
        for rank, outcome in outcomes.items():
            told = outcome.error or outcome.value
            assert "bagua_net, group" in told, (rank, told)
        # As their errors say, later operations fail at once, and the survivors can start over without the dead rank.
        ranks.begin(survivors, [rank for rank in range(size) if rank != 1])
        assert all(not outcome.error for outcome in ranks.collect().values())


def survivors(here: Here, living: list[int]) -> None:
    """Like a trainer that goes on with fewer ranks."""
    dist.distributed_c10d._abort_process_group()
    dist.init_process_group(
        "bagua_net",
        store=dist.PrefixStore("survivors", here.store),
        rank=living.index(here.rank),
        world_size=len(living),
        timeout=here.timeout,
    )
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [float(len(living))]


# ---- monitored barrier ----


def monitored(here: Here, absent: list[int], all_of_them: bool) -> str:
    group = dist.new_group()
    told = ""
    if here.rank not in absent:
        told = refusal(lambda: group.monitored_barrier(_SHORT, wait_all_ranks=all_of_them))
    here.meet("over")
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", variants(3, nightly=[4]), indirect=True)
def test_monitored_barrier(ranks: Ranks) -> None:
    last = ranks.size - 1
    assert ranks.run(monitored, [], False) == ["accepted"] * ranks.size
    told = ranks.run(monitored, [1], False)
    assert re.search(r"DistBackendError: .*rank 1 did not come to monitored_barrier within 1 s", told[0])
    assert re.search(r"DistBackendError: .*rank 0 did not say", told[last])
    told = ranks.run(monitored, [1, last], True)
    assert f"ranks 1, {last} did not come" in told[0]
    told = ranks.run(monitored, [0], False)
    assert all("rank 0 did not say within 1 s that all ranks are here" in text for text in told[1:])


def monitored_by_torch(here: Here) -> str:
    group = dist.new_group()
    told = refusal(lambda: dist.monitored_barrier(group, _SHORT)) if here.rank != 1 else ""
    here.meet("over")
    dist.destroy_process_group(group)
    return told


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_monitored_barrier_of_torch(ranks: Ranks) -> None:
    """Up to 2.13 torch allows it only for gloo."""
    told = ranks.run(monitored_by_torch)[0]
    if "only implemented for GLOO" in told:
        pytest.skip(f"this torch says: {told}")
    assert re.search(r"DistBackendError: .*rank 1 did not come to monitored_barrier within 1 s", told)


def monitored_anew(here: Here) -> str:
    """A group of the same name in the same store: the keys of the earlier group do not count."""
    for absent in ([], [1]):
        dist.destroy_process_group()
        here.init(dist.PrefixStore("anew", here.board))
        told = ""
        if here.rank not in absent:
            told = refusal(lambda: dist.group.WORLD.monitored_barrier(_SHORT))
        here.meet(f"over {absent}")
    dist.destroy_process_group()
    here.join()
    return told


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_monitored_barrier_of_a_group_made_anew(ranks: Ranks) -> None:
    assert "rank 1 did not come" in ranks.run(monitored_anew)[0]
