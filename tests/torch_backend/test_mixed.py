# SPDX-License-Identifier: MIT
"""Groups with another backend for other devices, and groups that are made of a group."""

from __future__ import annotations

import contextlib
import gc
import re
import weakref
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint

import bagua_net.torch
from tests.support.ranks import Ranks, refusal

if TYPE_CHECKING:
    from tests.support.rank import Here

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
#: gloo serves CPU tensors under any name, so that it can stand for a GPU's backend here.
_FORMS = ["cpu:bagua_net,cuda:gloo", "cuda:gloo,cpu:bagua_net"]
_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)


def _total(group: Any, rank: int) -> float:
    tensor = torch.full((3,), float(rank))
    group.allreduce([tensor]).wait()
    return float(tensor[0].item())


# ---- other backends ----


def mixed(here: Here, backend: str) -> None:
    group = dist.new_group(backend=backend)
    wanted = sum(range(here.size))
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    assert isinstance(group._get_backend(_CUDA), dist.ProcessGroupGloo)
    assert not isinstance(group._get_backend(_CPU), dist.ProcessGroupGloo)

    tensor = torch.full((3,), float(here.rank))
    dist.all_reduce(tensor, group=group)
    assert tensor[0].item() == wanted == _total(group._get_backend(_CUDA), here.rank)
    said: list[Any] = [None] * here.size
    dist.all_gather_object(said, {"of": here.rank}, group=group)
    assert said == [{"of": rank} for rank in range(here.size)]
    dist.barrier(group)
    dist.destroy_process_group(group)
    assert refusal(lambda: dist.all_reduce(tensor, group=group)) != "accepted"


@pytest.mark.parametrize("backend", _FORMS)
def test_another_backend_for_another_device(ranks: Ranks, backend: str) -> None:
    ranks.run(mixed, backend)


def default_mixed(here: Here, directory: str) -> None:
    """As torch's own default, "cpu:gloo,cuda:nccl": DDP, an asynchronous checkpoint, the end of everything."""
    dist.destroy_process_group()
    store = dist.PrefixStore("mixed", here.store)
    dist.init_process_group(_FORMS[0], store=store, rank=here.rank, world_size=here.size, timeout=here.timeout)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.full((4,), float(here.rank))).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, torch.full((4, 4), sum(range(here.size)) / here.size))
    name = f"of {here.rank}"
    torch.distributed.checkpoint.async_save({name: torch.ones(9)}, checkpoint_id=directory).result()
    assert len(dist.distributed_c10d._world.pg_map) == len(dist.distributed_c10d._world.pg_names) >= 1
    dist.destroy_process_group()
    here.join()


@_TWO
def test_a_mixed_default_group(ranks: Ranks, tmp_path: Any) -> None:
    ranks.run(default_mixed, str(tmp_path))


def handed_on(here: Here, backend: str) -> dict[str, str]:
    """What becomes of tensors that are on no device that a backend here can read."""
    group = dist.new_group(backend=backend)
    meta = torch.empty(3 * here.size, device="meta")
    parts = list(meta.chunk(here.size))
    told = {
        "allreduce": refusal(lambda: group.allreduce([meta])),
        "broadcast": refusal(lambda: group.broadcast([meta])),
        "allgather": refusal(lambda: group.allgather([parts], [parts[0]])),
        "scatter": refusal(lambda: group.scatter([parts[0]], [parts])),
        "alltoall": refusal(lambda: group.alltoall(parts, parts)),
        "send": refusal(lambda: group.send([meta], (here.rank + 1) % here.size, 0)),
    }
    dist.barrier(group)
    dist.destroy_process_group(group)
    return told


@_TWO
def test_tensors_of_other_devices_go_to_the_other_backend(ranks: Ranks) -> None:
    """torch answers as it does without this backend: to some calls that gloo cannot do them, to others with nothing."""
    mixed, native = (ranks.run(handed_on, backend) for backend in ("cpu:bagua_net,meta:gloo", "cpu:gloo,meta:gloo"))
    assert mixed == native


class Stranger(dist.ProcessGroupGloo):  # type: ignore[misc]
    """A backend that torch does not know, for GPUs. It tells which one torch gave it; its operations are gloo's."""

    supports_splitting = True  # torch connects only such backends in advance
    made: ClassVar[list[Stranger]] = []

    def __init__(self, options: Any, _: Any) -> None:
        super().__init__(options.store, options.group_rank, options.group_size, options.timeout)
        group = getattr(options, "process_group", None)  # torch >= 2.14
        self.told = [] if group is None else [f"made for {group.bound_device_id}"]
        self.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.told.append(f"connected to {device}")


def _with_stranger(cpu: str) -> str:
    if not hasattr(dist.Backend, "STRANGER"):
        dist.Backend.register_backend("stranger", Stranger, extended_api=True, devices=["cuda"])
    return f"cpu:{cpu},cuda:stranger"


def bound(here: Here, cpu: str) -> list[str]:
    """What the backend of a group that is bound to a GPU was told."""
    group = dist.new_group(backend=_with_stranger(cpu), device_id=torch.device("cuda:1"))
    told = Stranger.made.pop().told
    dist.barrier()  # the group's own would be on its device
    dist.destroy_process_group(group)
    return told


@_TWO
def test_the_other_backend_learns_of_the_groups_device(ranks: Ranks) -> None:
    """It is made for it and connected to it once, as beside torch's own backends."""
    ours, native = ranks.run(bound, "bagua_net"), ranks.run(bound, "gloo")
    assert ours == native
    assert all(told[-1:] == ["connected to cuda:1"] for told in ours)


def _registered() -> dict[str, int]:
    """How much is in each of torch's registers of groups."""
    world = dist.distributed_c10d._world
    return {name: len(getattr(world, name)) for name in dir(world) if name.startswith("pg_")}


def forgotten(here: Here) -> list[list[bool]]:
    """Whether torch's flight recorders of the other backends (torch >= 2.15) live: with the group, and after it."""
    before, recorders = _registered(), []
    hook = getattr(dist.distributed_c10d, "FlightRecorderHook", None)

    def attach(*arguments: Any) -> Any:
        assert hook is not None
        made = hook.attach(*arguments)
        recorders.append(weakref.ref(made))
        return made

    with mock.patch.object(dist.distributed_c10d, "FlightRecorderHook", SimpleNamespace(attach=attach), create=True):
        group = dist.new_group(backend=_with_stranger("bagua_net"))
    Stranger.made.clear()
    gc.collect()
    living = [[recorder() is not None for recorder in recorders]]
    dist.barrier(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert _registered() == before
    return [*living, [recorder() is not None for recorder in recorders]]


@_TWO
def test_torch_keeps_nothing_of_a_destroyed_mixed_group(ranks: Ranks) -> None:
    for living, left in ranks.run(forgotten):
        assert all(living)
        assert not any(left)


def asked(here: Here, backend: str) -> str:
    told = refusal(lambda: dist.new_group(backend=backend))
    dist.barrier()
    return told


@_TWO
def test_a_backend_that_this_torch_does_not_have(ranks: Ranks) -> None:
    """With a GPU and NCCL the group is made; without them torch says what it lacks, as beside gloo."""
    ours, native = (ranks.run(asked, f"cuda:nccl,cpu:{cpu}") for cpu in ("bagua_net", "gloo"))
    assert ours == native


def governed(here: Here, backend: str) -> tuple[str, str]:
    """What concerns the whole group: timeout, number of collectives, abort. Two refusals."""
    group = dist.new_group(backend=backend)
    group.set_timeout(timedelta(seconds=7))
    assert group._get_backend(_CUDA).options._timeout == timedelta(seconds=7)

    before = group._get_sequence_number_for_group()
    assert [_total(group, here.rank) for _ in range(3)] == [sum(range(here.size))] * 3
    _total(group._get_backend(_CUDA), here.rank)  # that one counts for itself
    assert group._get_sequence_number_for_group() == before + 3
    merging = refusal(lambda: group.merge_remote_group(here.board, here.size))

    work = group.recv([torch.zeros(3)], (here.rank + 1) % here.size, 0)
    here.meet("nobody sends")
    group.abort()
    waiting = refusal(work.wait)
    dist.destroy_process_group(group)
    return merging, waiting


@pytest.mark.parametrize("backend", _FORMS)
@_TWO
def test_a_mixed_group_is_governed_as_one(ranks: Ranks, backend: str) -> None:
    for merging, waiting in ranks.run(governed, backend):
        assert "a group with several backends cannot merge" in merging
        assert waiting.startswith("DistBackendError: bagua_net, group ")


@_TWO
def test_it_does_not_serve_other_devices(ranks: Ranks) -> None:
    for told in ranks.run(asked, "cuda:bagua_net"):
        assert re.search(r'ValueError: bagua_net: it serves CPU tensors .* to serve cuda; use "cpu:bagua_net"', told)


@_TWO
def test_the_cpu_may_be_named(ranks: Ranks) -> None:
    ranks.run(named)


def named(here: Here) -> None:
    group = dist.new_group(backend="cpu:bagua_net")
    assert _total(group, here.rank) == sum(range(here.size))
    dist.destroy_process_group(group)


# ---- the name alone, on a machine with an accelerator ----


def _accelerated(other: str) -> contextlib.ExitStack:
    """As on a machine with a CUDA device, for whose tensors torch's default is that backend."""
    stack = contextlib.ExitStack()
    device = SimpleNamespace(current_accelerator=lambda **_: _CUDA)
    stack.enter_context(mock.patch.object(torch, "accelerator", device))
    stack.enter_context(mock.patch.dict(dist.Backend.default_device_backend_map, {"cuda": other}))
    stack.enter_context(mock.patch.object(dist.distributed_c10d, f"is_{other}_available", return_value=other == "gloo"))
    return stack


def named_alone(here: Here, backend: str) -> set[str]:
    with _accelerated("gloo"):
        group = dist.new_group(backend=backend)
    assert _total(group, here.rank) == sum(range(here.size))
    devices = {device.type for device in group._device_types}
    if "cuda" in devices:
        assert isinstance(group._get_backend(_CUDA), dist.ProcessGroupGloo)
        assert _total(group._get_backend(_CUDA), here.rank) == sum(range(here.size))
    dist.destroy_process_group(group)
    return devices


@_TWO
def test_the_name_alone_stands_for_all_devices(ranks: Ranks) -> None:
    """As torch's own default does. With the CPU's name before it, it is for the CPU alone."""
    assert ranks.run(named_alone, "bagua_net") == [{"cpu", "cuda"}] * 2
    assert ranks.run(named_alone, "cpu:bagua_net") == [{"cpu"}] * 2


def without_nccl(here: Here) -> str:
    with _accelerated("nccl"):
        told = refusal(lambda: dist.new_group(backend="bagua_net"))
    dist.barrier()
    return told


@_TWO
def test_an_accelerator_whose_backend_torch_lacks(ranks: Ranks) -> None:
    for told in ranks.run(without_nccl):
        assert told.startswith("RuntimeError: bagua_net: this machine has a cuda device, ")
        assert told.endswith('torch was built without nccl; use "cpu:bagua_net" for a group of CPU tensors alone')


def test_a_torch_that_makes_groups_otherwise_is_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"does not know torch {re.escape(torch.__version__)}: it makes groups"):
        bagua_net.torch._make_group(None, None)


# ---- parts, and wholes ----


def split(here: Here, backend: str | None) -> None:
    parent = dist.new_group(backend=backend)
    group = parent.split_group([here.size - 1, 0], timeout=timedelta(seconds=30), group_desc="ends")
    if here.rank in (0, here.size - 1):
        assert (group.rank(), group.size()) == (0 if here.rank == 0 else 1, 2)
        assert group.group_desc == "ends"
        assert _total(group, here.rank) == here.size - 1
        if backend:
            assert _total(group._get_backend(_CUDA), here.rank) == here.size - 1
        again = group.split_group([0, 1])  # a part of the part, under the name that torch would give it
        assert again.group_name == f"{group.group_name}:split:[0, 1]"
        beside = group.split_group([0, 1]) if backend is None else again  # another one of the same ranks
        assert _total(beside, 1) == _total(again, 1) == 2
        beside.shutdown()
        again.shutdown()
        group.shutdown()
    else:
        assert group is None
    assert _total(parent, here.rank) == sum(range(here.size))
    dist.destroy_process_group(parent)


@pytest.mark.parametrize("backend", [None, _FORMS[0]])
def test_a_part_of_a_group(ranks: Ranks, backend: str | None) -> None:
    ranks.run(split, backend)


def split_wrongly(here: Here) -> list[str]:
    group = dist.group.WORLD
    lists: tuple[list[int], ...] = ([], [0, 0], [0, here.size], [-1, 0])
    return [refusal(partial(group.split_group, chosen)) for chosen in lists]


@_TWO
def test_ranks_that_cannot_be_split_off(ranks: Ranks) -> None:
    for told in ranks.run(split_wrongly):
        for text in told:
            assert re.search("must be different ranks of this group|cannot be empty|duplicates|rank", text), text
            assert text != "accepted"


def merged(here: Here) -> None:
    """Each rank alone, and then all together."""
    groups = [dist.new_group([rank]) for rank in range(here.size)]
    store = dist.PrefixStore("merged", here.board)
    group = groups[here.rank].merge_remote_group(store, here.size, timeout=timedelta(seconds=30), group_name="all")
    assert (group.size(), group.group_name) == (here.size, "all")
    ranks = torch.zeros(here.size)
    ranks[group.rank()] = 1.0
    group.allreduce([ranks]).wait()
    assert ranks.tolist() == [1.0] * here.size
    group.shutdown()
    dist.destroy_process_group(groups[here.rank])


def test_groups_merge(ranks: Ranks) -> None:
    ranks.run(merged)
