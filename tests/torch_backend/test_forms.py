# SPDX-License-Identifier: MIT
"""Other forms of collectives: several at once, asynchronous, objects, functional; and their results."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.support.ranks import Ranks, refusal
from tests.torch_backend import names
from tests.torch_backend.cases import values

if TYPE_CHECKING:
    from tests.support.rank import Here

SHAPES = ((3, 5), (0,), (1,), (7, 2), (200_003,))


def _mine(rank: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """One tensor of each shape."""
    return [values(dtype, shape, 10 * rank + number) for number, shape in enumerate(SHAPES)]


def _sums(size: int) -> list[torch.Tensor]:
    return [torch.stack(tensors).sum(0) for tensors in zip(*(_mine(rank) for rank in range(size)), strict=True)]


def _same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Sums of at most four numbers near one."""
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def _equal(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# ---- a group's own methods, in the forms that torch's own groups take ----


def fields_in_place_of_options(here: Here) -> None:
    group, limit, size = dist.group.WORLD, timedelta(seconds=60), here.size
    own = torch.tensor([here.rank + 1.0, 2.0])
    rows, part = [torch.empty(2) for _ in range(size)], torch.empty(2)
    group.allreduce(part.copy_(own), dist.ReduceOp.MAX, limit).wait()
    assert part.tolist() == [size, 2]
    group.allreduce([part.copy_(own)], op=dist.ReduceOp.MIN, timeout=limit).wait()
    assert part.tolist() == [1, 2]
    group.broadcast(part.copy_(own), 1, limit).wait()
    assert part.tolist() == [2, 2]
    group.broadcast(part.copy_(own), root=1).wait()
    assert part.tolist() == [2, 2]
    group.reduce(part.copy_(own), 1, dist.ReduceOp.MAX, limit).wait()
    assert here.rank != 1 or part.tolist() == [size, 2]
    group.allgather(rows, own, timeout=limit).wait()
    assert [row.tolist() for row in rows] == [[rank + 1, 2] for rank in range(size)]
    gathered = [torch.empty(2) for _ in range(size)] if here.rank == 1 else []
    group.gather(gathered, own, 1, limit).wait()
    assert all(map(torch.equal, gathered, rows))
    group.scatter(part, gathered, 1, limit).wait()
    assert part.tolist() == [here.rank + 1, 2]
    group.reduce_scatter(part, [own] * size, dist.ReduceOp.MAX, limit).wait()
    assert part.tolist() == [size, 2]
    mixed = torch.empty(size)
    group.alltoall_base(mixed, own[:1].repeat(size), [], [], timeout=limit).wait()
    assert mixed.tolist() == [rank + 1 for rank in range(size)]
    group.barrier(timeout=limit).wait()


def test_fields_in_place_of_options(ranks: Ranks) -> None:
    ranks.run(fields_in_place_of_options)


def complex_sums(here: Here) -> None:
    for dtype in (torch.complex64, torch.complex128):
        own = torch.tensor([1 + 2j, here.rank], dtype=dtype)
        whole, part = own.repeat(here.size), torch.empty(2, dtype=dtype)
        total = [here.size * (1 + 2j), here.size * (here.size - 1) / 2]
        dist.group.WORLD.allreduce(part.copy_(own)).wait()
        assert part.tolist() == total
        dist.reduce(part.copy_(own), 0)
        assert here.rank != 0 or part.tolist() == total
        dist.reduce_scatter_tensor(part, whole)
        assert part.tolist() == total
        dist.reduce_scatter(part, [own] * here.size, dist.ReduceOp.AVG)
        assert part.tolist() == [1 + 2j, (here.size - 1) / 2]


def test_complex_sums(ranks: Ranks) -> None:
    ranks.run(complex_sums)


# ---- several tensors in one call ----


def all_reduce_coalesced(here: Here) -> None:
    tensors = _mine(here.rank)
    dist.all_reduce_coalesced(tensors)
    _same(tensors, _sums(here.size))
    tensors = _mine(here.rank)
    result = dist.all_reduce_coalesced(tensors, async_op=True).wait()
    _same(tensors, _sums(here.size))
    _same(result, _sums(here.size))


def test_all_reduce_coalesced(ranks: Ranks) -> None:
    ranks.run(all_reduce_coalesced)


def all_reduce_coalesced_types(here: Here) -> None:
    """Our own method takes tensors of different types; each must be reduced as its type."""
    tensors = [torch.tensor([here.rank + 1], dtype=dtype) for dtype in (torch.int64, torch.float32, torch.int64)]
    dist.group.WORLD.allreduce_coalesced(tensors).wait()
    total = here.size * (here.size + 1) // 2
    assert [(tensor.item(), tensor.dtype) for tensor in tensors] == [
        (total, torch.int64),
        (float(total), torch.float32),
        (total, torch.int64),
    ]


def test_all_reduce_coalesced_of_several_types(ranks: Ranks) -> None:
    ranks.run(all_reduce_coalesced_types)


def all_reduce_coalesced_sizes(here: Here) -> None:
    """Large tensors are reduced where they are, small ones together, also where their elements are not contiguous."""
    square = torch.arange(600 * 600, dtype=torch.float32).view(600, 600)
    tensors = [square.t() * 1, square[:, ::2], torch.ones(3), square.t()[:9], torch.ones(200_000)]
    expected = [tensor * sum(range(1, here.size + 1)) for tensor in tensors]
    mine = [torch.empty_strided(tensor.shape, tensor.stride()).copy_(tensor * (here.rank + 1)) for tensor in tensors]
    work = dist.all_reduce_coalesced(mine, async_op=True)
    work.wait()
    _same(mine, expected)


def test_all_reduce_coalesced_of_several_sizes(ranks: Ranks) -> None:
    ranks.run(all_reduce_coalesced_sizes)


def all_gather_coalesced(here: Here, asynchronous: bool) -> None:
    outputs = [[torch.empty_like(tensor) for tensor in _mine(0)] for _ in range(here.size)]
    work = dist.all_gather_coalesced(outputs, _mine(here.rank), async_op=asynchronous)
    if asynchronous:
        work.wait()
    for rank in range(here.size):
        _equal(outputs[rank], _mine(rank))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_gather_coalesced(ranks: Ranks, asynchronous: bool) -> None:
    ranks.run(all_gather_coalesced, asynchronous)


def coalescing_manager(here: Here, asynchronous: bool) -> None:
    """Used by FSDP. Nothing is done before the block ends."""
    reduced = _mine(here.rank)
    with dist.distributed_c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor)
    gathered = [tensor.new_empty((here.size * tensor.shape[0], *tensor.shape[1:])) for tensor in reduced]
    if asynchronous:
        manager.wait()
    _same(reduced, _sums(here.size))
    with dist.distributed_c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for output, tensor in zip(gathered, _mine(here.rank), strict=True):
            names.all_gather_single(output, tensor)
    if asynchronous:
        manager.wait()
    _equal(gathered, [torch.cat(tensors) for tensors in zip(*(_mine(rank) for rank in range(here.size)), strict=True)])
    shares = [torch.empty_like(tensor) for tensor in reduced]
    with dist.distributed_c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for share, whole in zip(shares, gathered, strict=True):
            names.reduce_scatter_single(share, whole)
    if asynchronous:
        manager.wait()
    _same(shares, [here.size * tensor for tensor in _mine(here.rank)])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_coalescing_manager(ranks: Ranks, asynchronous: bool) -> None:
    ranks.run(coalescing_manager, asynchronous)


def coalescing_by_device(here: Here) -> None:
    """With a device, torch tells the group when the block begins and ends, and waits for all of it."""
    received = torch.zeros(100_000)
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((100_000,), float(here.rank)), peer)
        dist.irecv(received, source)
    manager.wait()
    _equal([received], [torch.full((100_000,), float(source))])


def test_coalescing_of_messages(ranks: Ranks) -> None:
    ranks.run(coalescing_by_device)


def coalescing_beside_another_thread(here: Here) -> None:
    """Meanwhile the other thread receives a message that is sent after the block."""
    received, later = torch.zeros(10), torch.zeros(10)
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    works = []
    thread = threading.Thread(target=lambda: works.append(dist.irecv(later, source, tag=2)))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.ones(10), peer, tag=1)
        dist.irecv(received, source, tag=1)
        thread.start()
        thread.join()
    (whole,) = manager.works
    whole.wait(timedelta(seconds=20))
    here.meet("the block is over")
    dist.send(torch.ones(10), peer, tag=2)
    works[0].wait()
    _equal([received, later], [torch.ones(10)] * 2)


def test_a_coalesced_block_is_of_its_own_thread(ranks: Ranks) -> None:
    ranks.run(coalescing_beside_another_thread)


def coalescing_that_is_not_waited_for(here: Here) -> None:
    """The block receives from a peer that first waits for a message sent after the block."""
    received, after = torch.zeros(100_000), torch.zeros(10)
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.irecv(received, source, tag=1)
    first = dist.isend(torch.ones(10), peer, tag=2)
    dist.recv(after, source, tag=2)
    second = dist.isend(torch.ones(100_000), peer, tag=1)
    manager.wait()
    (whole,) = manager.works
    assert whole.is_completed()
    assert whole.is_success()
    _equal(whole.get_future().wait(), [torch.ones(100_000)])
    first.wait()
    second.wait()


def test_a_coalesced_block_does_not_wait_for_itself(ranks: Ranks) -> None:
    ranks.run(coalescing_that_is_not_waited_for, seconds=40)


# ---- asynchronous operations ----


def in_order(here: Here) -> None:
    """Twenty at once on one tensor: each works on the result of the one before."""
    tensor = torch.ones(3000, dtype=torch.int64)
    works: list[Any] = []
    for number in range(20):
        if number % 2 == 0:
            works.append(dist.all_reduce(tensor, async_op=True))
        else:
            works.append(dist.broadcast(tensor, src=number % here.size, async_op=True))
    for work in works:
        work.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    assert tensor.unique().tolist() == [here.size**10]


def test_operations_run_in_the_order_in_which_they_were_asked_for(ranks: Ranks) -> None:
    ranks.run(in_order)


def waits_behind(here: Here) -> None:
    """A synchronous operation, which could run on its caller's thread, still runs after those called before."""
    tensor = torch.ones(400_000, dtype=torch.int64)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(4)]
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [here.size**5]
    for work in works:
        work.wait()


def test_a_synchronous_operation_waits_for_those_before_it(ranks: Ranks) -> None:
    ranks.run(waits_behind)


def _transposed() -> torch.Tensor:
    """Not contiguous: what the library has for it is stored in it afterwards."""
    return torch.ones((50, 60), dtype=torch.int64).t()


def in_order_without_memory_of_their_own(here: Here) -> None:
    tensor, alone = _transposed(), _transposed()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(4)]
    works.append(dist.all_reduce(alone, async_op=True))
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [here.size**5]
    dist.all_reduce(alone, async_op=True)
    dist.barrier()
    assert alone.unique().tolist() == [here.size**2]
    alone.fill_(7)  # nothing comes after the barrier
    for _ in range(40):
        dist.all_reduce(torch.ones(1))
    assert alone.unique().tolist() == [7]
    for work in works:
        work.wait()


def in_order_of_coalesced(here: Here) -> None:
    parts = [torch.ones(10, dtype=torch.int64), torch.ones(20, dtype=torch.int64)]
    work = dist.all_reduce_coalesced(parts, async_op=True)
    dist.all_reduce(parts[0])
    assert parts[0].unique().tolist() == [here.size**2]
    assert parts[1].unique().tolist() == [here.size]
    work.wait()


def test_the_order_holds_for_tensors_that_are_not_contiguous(ranks: Ranks) -> None:
    ranks.run(in_order_without_memory_of_their_own)
    ranks.run(in_order_of_coalesced)


def futures(here: Here) -> None:
    tensor = torch.full((70_000,), here.rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    total = here.size * (here.size + 1) / 2
    halves = work.get_future().then(lambda future: [part / 2 for part in future.value()])
    _equal(halves.wait(), [torch.full((70_000,), total / 2)])
    assert work.is_completed()
    _equal(work.result(), [tensor])
    # Called when all has ended.
    _equal(work.get_future().wait(), [torch.full((70_000,), total)])


def test_futures_hold_the_tensors(ranks: Ranks) -> None:
    ranks.run(futures)


def inside_a_callback(here: Here) -> None:
    """PowerSGD's hook does this: an operation started in a callback must run while the callback waits."""

    def more(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = future.value()[0]
        dist.all_reduce(tensor)
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    results = []
    for _ in range(10):
        tensor = torch.ones(50_000, dtype=torch.int64)
        results.append(dist.all_reduce(tensor, async_op=True).get_future().then(more).wait())
    assert [result.unique().tolist() for result in results] == [[here.size**3]] * 10


def test_a_callback_may_wait_for_a_collective(ranks: Ranks) -> None:
    ranks.run(inside_a_callback, seconds=40)


def inside_a_callback_of_a_message(here: Here) -> None:
    peer, source = (here.rank + 1) % here.size, (here.rank - 1) % here.size

    def more(future: torch.futures.Future[Any]) -> float:
        answer = torch.zeros(1)
        work = dist.isend(torch.tensor([here.rank + 0.5]), peer, tag=2)
        dist.recv(answer, source, tag=2)
        work.wait()
        return float(answer.item())

    first = torch.zeros(30_000)
    received = dist.irecv(first, source, tag=1).get_future()
    sent = dist.isend(torch.ones(30_000), peer, tag=1)  # first: torch runs the callback here if the message has come
    assert received.then(more).wait() == source + 0.5
    sent.wait()


def test_a_callback_may_wait_for_a_message(ranks: Ranks) -> None:
    ranks.run(inside_a_callback_of_a_message, seconds=40)


def forgotten_tensors(here: Here) -> None:
    """Only the works hold the tensors; other memory is used meanwhile."""
    works = [dist.all_reduce(torch.full((100_000,), 2.0), async_op=True) for _ in range(8)]
    junk = [torch.full((100_000,), -1.0) for _ in range(8)]
    for work in works:
        work.wait()
        assert work.result()[0].unique().tolist() == [2.0 * here.size]
    assert all(tensor.unique().tolist() == [-1.0] for tensor in junk)


def test_tensors_live_until_the_operation_is_over(ranks: Ranks) -> None:
    ranks.run(forgotten_tensors)


def gradients(here: Here) -> None:
    """A leaf that requires gradients is written to, without being recorded by autograd."""
    tensor = torch.ones(5, requires_grad=True)
    dist.all_reduce(tensor)
    assert tensor.requires_grad
    assert tensor.grad_fn is None
    assert tensor.tolist() == [here.size] * 5


def test_tensors_that_require_gradients(ranks: Ranks) -> None:
    ranks.run(gradients)


def elsewhere_by_default(here: Here, later: bool) -> None:
    """The group's temporary tensors are in host memory regardless. The test calls its methods as C++ does: the
    functions of torch.distributed reset the default device."""
    group, size, peer, source = dist.group.WORLD, here.size, (here.rank + 1) % here.size, (here.rank - 1) % here.size
    mine = torch.full((40,), float(here.rank))
    all_of_them = [torch.full((40,), float(rank)) for rank in range(size)]
    held = [torch.zeros(40, 2)[:, 0] for _ in range(2 * size + 1)]  # every second number, so it needs a copy
    each, parts, got = held[:size], held[size : 2 * size], held[-1]
    gather, exchange = dist.distributed_c10d.AllgatherOptions(), dist.distributed_c10d.AllToAllOptions()
    gather.asyncOp = exchange.asyncOp = later
    torch.set_default_device("meta")
    try:
        works = [
            group.allgather([each], [mine], gather),
            group.alltoall(parts, [mine] * size, exchange),
            group.send([mine], peer, 0),
            group.recv([got], source, 0),
        ]
        for work in works:
            work.wait()
    finally:
        torch.set_default_device(None)
    _equal([*each, *parts, got], [*all_of_them, *all_of_them, all_of_them[source]])


def broadcast_of_one_element(here: Here) -> list[float]:
    """The root's tensor is read alone: nothing can be stored in it."""
    tensor = torch.full((1,), 5.0).expand(8) if here.rank == 0 else torch.zeros(8)
    dist.broadcast(tensor, 0)
    return list(map(float, tensor))


def test_a_broadcast_only_reads_its_root_s_tensor(ranks: Ranks) -> None:
    assert ranks.run(broadcast_of_one_element) == [[5.0] * 8] * ranks.size


@pytest.mark.parametrize("later", [False, True])
def test_another_default_device(ranks: Ranks, later: bool) -> None:
    ranks.run(elsewhere_by_default, later)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def in_inference_mode(here: Here) -> None:
    """The mode belongs to the caller's thread; the operation runs on another one."""
    size, peer, source = here.size, (here.rank + 1) % here.size, (here.rank - 1) % here.size
    mine = torch.full((40,), float(here.rank))
    each = [torch.zeros(40) for _ in range(size)]
    total, summed, got = (torch.full((40, 2), float(here.rank))[:, 0] for _ in range(3))
    works = [
        dist.all_gather(each, mine, async_op=True),
        dist.all_reduce(total, async_op=True),
        dist.reduce(summed, dst=0, async_op=True),
        dist.isend(mine, peer),
        dist.irecv(got, source),
    ]
    for work in works:
        work.wait()
    _equal([*each, got], [*(torch.full((40,), float(rank)) for rank in range(size)), torch.full((40,), float(source))])
    _equal([total], [torch.full((40,), float(sum(range(size))))])
    if here.rank == 0:
        _equal([summed], [total])


def test_inference_mode(ranks: Ranks) -> None:
    ranks.run(in_inference_mode)


def lazy_views(here: Here) -> None:
    """A conjugate and its imaginary part are views whose memory has other signs."""
    numbers = values(torch.complex64, (6,), here.rank)
    gathered = [torch.zeros(6) for _ in range(here.size)]
    dist.all_gather(gathered, numbers.conj().imag)
    _equal(gathered, [-values(torch.complex64, (6,), rank).imag for rank in range(here.size)])
    at_root = [torch.zeros(6, dtype=torch.complex64) for _ in range(here.size)] if here.rank == 0 else None
    dist.gather(numbers.conj(), at_root)
    if at_root is not None:
        _equal(at_root, [values(torch.complex64, (6,), rank).conj().resolve_conj() for rank in range(here.size)])
    total = values(torch.complex64, (6,), here.rank).conj().imag
    dist.all_reduce(total)
    _same([total.resolve_neg()], [sum(-values(torch.complex64, (6,), rank).imag for rank in range(here.size))])


def test_conjugates_and_negatives(ranks: Ranks) -> None:
    ranks.run(lazy_views)


# ---- objects ----


def _object(rank: int) -> dict[str, Any]:
    """Objects of a different size on each rank."""
    return {"rank": rank, "bytes": b"x" * (rank * 1000), "nested": [(rank, None), "é" * rank]}


def objects(here: Here) -> None:
    everyone = [_object(rank) for rank in range(here.size)]
    gathered: list[Any] = [None] * here.size
    dist.all_gather_object(gathered, _object(here.rank))
    assert gathered == everyone
    for root in range(here.size):
        listed: list[Any] = [_object(root), "two", 3] if here.rank == root else [None] * 3
        dist.broadcast_object_list(listed, src=root)
        assert listed == [_object(root), "two", 3]
        at_root: list[Any] | None = [None] * here.size if here.rank == root else None
        dist.gather_object(_object(here.rank), at_root, dst=root)
        assert at_root == (everyone if here.rank == root else None)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, everyone if here.rank == root else None, src=root)
        assert mine == [_object(here.rank)]
    if here.rank == 0:
        dist.send_object_list([_object(7)], dst=1)
    elif here.rank == 1:
        received: list[Any] = [None]
        dist.recv_object_list(received, src=0)
        assert received == [_object(7)]


def test_objects(ranks: Ranks) -> None:
    ranks.run(objects)


# ---- functional collectives, which torch.compile and DTensor call from C++ ----


def functional_collectives(here: Here) -> None:
    group = dist.group.WORLD
    given = values(torch.float32, (4 * here.size, 3), here.rank)
    everyone = [values(torch.float32, (4 * here.size, 3), rank) for rank in range(here.size)]
    total = torch.stack(everyone).sum(0)
    mine = slice(4 * here.rank, 4 * here.rank + 4)
    _same([functional.all_reduce(given, "sum", group)], [total])
    _same([functional.all_reduce(given, "avg", group)], [total / here.size])
    _equal([names.functional_all_gather(given, 0, group)], [torch.cat(everyone)])
    _equal([names.functional_all_gather(given, 1, group)], [torch.cat(everyone, 1)])
    _same([names.functional_reduce_scatter(given, "sum", 0, group)], [total[mine]])
    _equal([functional.broadcast(given, 1, group)], [everyone[1]])
    even = [4] * here.size
    wanted = torch.cat([tensor[mine] for tensor in everyone])
    _equal([functional.all_to_all_single(given, even, even, group)], [wanted])
    _equal([functional.all_to_all_single(given, None, None, group)], [wanted])
    _same(functional.all_reduce_coalesced([given, given[0]], "sum", group), [total, total[0]])
    _equal(names.functional_all_gather_coalesced([given], group), [torch.cat(everyone)])
    _same(names.functional_reduce_scatter_coalesced([given], "sum", [0], group), [total[mine]])


def test_functional_collectives(ranks: Ranks) -> None:
    ranks.run(functional_collectives)


def differentiable(here: Here) -> None:
    """The gradient of a gathered tensor is scattered back."""
    given = torch.full((2, 3), float(here.rank), requires_grad=True)
    gathered = names.functional_all_gather_autograd(given, 0, dist.group.WORLD)
    (gathered * (here.rank + 1)).sum().backward()
    assert given.grad is not None
    assert given.grad.unique().tolist() == [here.size * (here.size + 1) / 2]


def test_gradients_through_functional_collectives(ranks: Ranks) -> None:
    ranks.run(differentiable)


# ---- tensors without memory of their own ----


def wrapped(here: Here) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    size, group = here.size, dist.group.WORLD
    result = functional.all_reduce(torch.ones(4), "sum", group)
    assert type(result) is functional.AsyncCollectiveTensor
    rows = [torch.empty(4) for _ in range(size)]
    dist.all_gather(rows, result)
    assert [row.tolist() for row in rows] == [[size] * 4] * size
    right, left = (here.rank + 1) % size, (here.rank - 1) % size
    sent = dist.isend(functional.all_reduce(torch.ones(4), "sum", group), right)
    dist.recv(rows[0].zero_(), left)
    sent.wait()
    assert rows[0].tolist() == [size] * 4
    dist.all_reduce(result)
    assert result.tolist() == [size * size] * 4
    spread = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (size,)), [Replicate()])
    return refusal(lambda: dist.all_reduce(spread))


def test_what_wraps_a_tensor_is_unwrapped_or_refused(ranks: Ranks) -> None:
    for told in ranks.run(wrapped, seconds=60):
        assert told.startswith("ValueError: all_reduce: a DTensor has no memory of its own; pass what it wraps")
