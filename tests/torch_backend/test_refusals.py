# SPDX-License-Identifier: MIT
"""Unsupported calls are refused with advice, on every rank independently, and the group stays usable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import Ranks, refusal
from tests.torch_backend import names

if TYPE_CHECKING:
    from tests.support.rank import Here


def _fake_cuda() -> torch.Tensor:
    """Imitates a tensor on a GPU without one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(4, device="cuda")


def refused_tensors(here: Here) -> dict[str, str]:
    group = dist.group.WORLD
    cuda = _fake_cuda()
    other = (here.rank + 1) % here.size
    told = {
        "cuda": refusal(lambda: group.allreduce([cuda])),
        "cuda sent": refusal(lambda: group.send([cuda], other, 0)),
        "cuda received": refusal(lambda: group.recv([cuda], other, 0)),
        "cuda gathered": refusal(lambda: group.allgather([[cuda] * here.size], [torch.empty(4)])),
        "sparse": refusal(lambda: dist.broadcast(torch.eye(3).to_sparse(), src=0)),
        "csr": refusal(lambda: dist.broadcast(torch.eye(3).to_sparse_csr(), src=0)),
        "meta": refusal(lambda: dist.all_reduce(torch.empty(3, device="meta"))),
    }
    dist.barrier()
    return told


def test_tensors_elsewhere(ranks: Ranks) -> None:
    for told in ranks.run(refused_tensors):
        for name in ("cuda", "cuda sent", "cuda received", "cuda gathered"):
            assert re.search(r"ValueError: .*takes CPU tensors.*cuda:0.*cuda:nccl", told[name]), told[name]
        for name in ("sparse", "csr"):
            assert re.search(r"ValueError: .*sparse.* not supported.*to_dense\(\)", told[name]), told[name]
        assert re.search(r"ValueError: .*takes CPU tensors.*meta", told["meta"]), told["meta"]


def refused_types(here: Here) -> dict[str, str]:
    ones, flags = torch.ones(3), torch.ones(3, dtype=torch.bool)
    told = {
        "premul": refusal(lambda: dist.all_reduce(ones, op=dist._make_nccl_premul_sum(2.0))),
        "premul scatter": refusal(
            lambda: names.reduce_scatter_single(ones[:1], ones.repeat(here.size)[::3], dist._make_nccl_premul_sum(2.0))
        ),
        "int16": refusal(lambda: dist.all_reduce(ones.to(torch.int16))),
        "bits of floats": refusal(lambda: dist.all_reduce(ones, op=dist.ReduceOp.BAND)),
        "average of bools": refusal(lambda: dist.all_reduce(flags, op=dist.ReduceOp.AVG)),
        "complex product": refusal(lambda: dist.all_reduce(ones.to(torch.complex64), op=dist.ReduceOp.PRODUCT)),
        "complex maximum": refusal(lambda: dist.reduce(ones.to(torch.complex64), 0, dist.ReduceOp.MAX)),
        "coalesced": refusal(lambda: dist.group.WORLD.allreduce_coalesced([ones, ones.to(torch.int16)])),
    }
    assert ones.tolist() == [1.0] * 3
    dist.barrier()
    return told


def test_reductions_that_there_are_not(ranks: Ranks) -> None:
    for told in ranks.run(refused_types):
        for name in ("premul", "premul scatter"):
            assert re.search(r"ValueError: .*PREMUL_SUM.* not supported.*ReduceOp\.SUM", told[name]), told[name]
        for name in ("int16", "coalesced"):
            assert re.search(r"ValueError: torch\.int16 cannot be reduced; convert it", told[name]), told[name]
        assert "bitwise reductions need integers, not torch.float32" in told["bits of floats"]
        assert re.search("no average; convert them", told["average of bools"])
        assert told["complex product"].startswith("ValueError: ")
        assert "torch.complex64 cannot be reduced" in told["complex maximum"]


def refused_sizes(here: Here) -> dict[str, str]:
    size, root = here.size, here.rank == 0
    three, whole = torch.ones(3), torch.ones(3 * size)
    more = torch.ones(3 * size + 1)
    told = {
        "all_gather count": refusal(lambda: dist.all_gather([three] * (size + 1), three)),
        "all_gather sizes": refusal(lambda: dist.all_gather([torch.ones(4)] * size, three)),
        "all_gather_single": refusal(lambda: names.all_gather_single(more, three)),
        "all_gather_single type": refusal(lambda: names.all_gather_single(whole.to(torch.int64), three)),
        "reduce_scatter count": refusal(lambda: dist.reduce_scatter(three, [three] * (size - 1))),
        "reduce_scatter_single": refusal(lambda: names.reduce_scatter_single(three, more)),
        "all_to_all count": refusal(lambda: dist.all_to_all([three] * (size + 1), [three] * size)),
        "all_to_all types": refusal(lambda: dist.group.WORLD.alltoall([whole.double()] * size, [whole] * size)),
        "all_to_all types of one list": refusal(
            lambda: dist.group.WORLD.alltoall([three] * size, [three.double(), *[three] * (size - 1)])
        ),
        "all_to_all_single types": refusal(lambda: dist.group.WORLD.all_to_all_single(whole.double(), whole, [], [])),
        "all_to_all_single": refusal(lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))),
        "all_to_all splits": refusal(lambda: dist.all_to_all_single(whole, whole, [3] * size, [2] * size)),
        "all_to_all negative": refusal(
            lambda: dist.all_to_all_single(whole, whole, [3] * size, [-3, 9, *[3] * (size - 2)])
        ),
        "gather_single": refusal(lambda: dist.group.WORLD.gather_single(more, three)) if root else "",
        "gather count": refusal(lambda: dist.gather(three, [three] * (size + 1))) if root else "",
        "gather sizes": refusal(lambda: dist.gather(three, [torch.ones(4)] * size)) if root else "",
        "scatter count": refusal(lambda: dist.scatter(three, [three] * (size + 1))) if root else "",
        "scatter sizes": refusal(lambda: dist.scatter(three, [torch.ones(2)] * size)) if root else "",
        "root": refusal(lambda: dist.broadcast(three, group_src=size)),
        "self": refusal(lambda: dist.send(three, here.rank)),
        "two tensors": refusal(lambda: dist.group.WORLD.allreduce([three, three])),
    }
    dist.barrier()
    return told


def test_sizes_that_do_not_fit(ranks: Ranks) -> None:
    for rank, told in enumerate(ranks.run(refused_sizes)):
        for name, text in told.items():
            if text or rank == 0:
                assert text.startswith(("ValueError: ", "DistBackendError: ", "TypeError: ")), (name, text)
        assert f"{ranks.size} tensors are needed, one for each rank, not {ranks.size + 1}" in told["all_gather count"]
        assert "must have the same type and size; one has 4" in told["all_gather sizes"]
        assert f"{ranks.size} × the elements" in told["all_gather_single"]
        assert "add up to" in told["all_to_all splits"]
        assert "cannot be split among" in told["all_to_all_single"]
        for name in ("all_to_all types", "all_to_all types of one list", "all_to_all_single types"):
            assert "the tensors are of torch.float32 and torch.float64; give all one type" in told[name]


def refused_to_oneself(here: Here) -> list[str]:
    """torch itself refuses only a send and a receive that wait."""
    group, one = dist.group.WORLD, torch.ones(1)
    calls = (
        lambda: dist.isend(one, here.rank),
        lambda: dist.irecv(one, here.rank),
        lambda: group.send([one], here.rank, 0),
        lambda: group.recv([one], here.rank, 0),
    )
    told = [refusal(call) for call in calls]
    dist.barrier()
    return told


def test_messages_to_oneself(ranks: Ranks) -> None:
    for rank, told in enumerate(ranks.run(refused_to_oneself)):
        for what, text in zip(("send", "recv", "send", "recv"), told, strict=True):
            assert re.match(f"ValueError: bagua_net, group.*: {what}: ", text), text
            assert text.endswith(f"rank {rank} cannot exchange messages with itself"), text


def refused_numbers(here: Here) -> dict[str, str]:
    """C would take the lowest bits of each."""
    group, one, other = dist.group.WORLD, torch.ones(1), (here.rank + 1) % here.size
    told = {
        "peer sent": refusal(lambda: group.send([one], 2**32 + other, 0)),
        "peer received": refusal(lambda: group.recv([one], 2**32 + other, 0)),
        "peer one too large": refusal(lambda: group.send([one], here.size, 0)),
        "peer negative": refusal(lambda: group.recv([one], -1, 0)),
        "tag sent": refusal(lambda: dist.send(one, other, tag=2**64 + 5)),
        "tag received": refusal(lambda: dist.recv(one, other, tag=2**63)),
        "tag of any": refusal(lambda: dist.recv(one, tag=-(2**63) - 1)),
    }
    works = []
    for tag in (2**63 - 1, -(2**63)):
        works.append(dist.isend(torch.full((1,), float(here.rank)), other, tag=tag))
        dist.recv(one, (here.rank - 1) % here.size, tag=tag)
        assert one.tolist() == [float((here.rank - 1) % here.size)]
    for work in works:
        work.wait()
    return told


def test_peers_and_tags_that_there_are_not(ranks: Ranks) -> None:
    for rank, told in enumerate(ranks.run(refused_numbers)):
        peers = {
            "peer sent": 2**32 + (rank + 1) % ranks.size,
            "peer received": 2**32 + (rank + 1) % ranks.size,
            "peer one too large": ranks.size,
            "peer negative": -1,
        }
        for name, peer in peers.items():
            assert re.match("ValueError: bagua_net, group.*: (send|recv): ", told[name]), told
            assert f": {peer} is no rank of this group, which has 0 to {ranks.size - 1}" in told[name]
        for name, tag in {"tag sent": 2**64 + 5, "tag received": 2**63, "tag of any": -(2**63) - 1}.items():
            assert told[name].startswith("ValueError: bagua_net, group")
            assert f"the tag {tag} has more than 64 bits: use {-(2**63)} to {2**63 - 1}" in told[name]


class _Number:
    """An integer of another type, as NumPy has them."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def refused_others(here: Here) -> dict[str, str]:
    group, one, other, before = (
        dist.group.WORLD,
        torch.ones(1),
        (here.rank + 1) % here.size,
        (here.rank - 1) % here.size,
    )
    told = {
        "send: the rank": refusal(lambda: dist.isend(one, here.size / 2)),
        "recv: the rank": refusal(lambda: group.recv([one], "0", 0)),
        "the tag": refusal(lambda: dist.recv(one, before, tag=1.5)),
    }
    sent = group.send([torch.full((1,), float(here.rank))], _Number(other), _Number(7))
    group.recv([one], before, 7).wait()
    sent.wait()
    assert one.tolist() == [float(before)]
    return told


def test_peers_and_tags_of_other_types(ranks: Ranks) -> None:
    """They leave the group as it was."""
    for told in ranks.run(refused_others):
        for what, text in told.items():
            assert re.match(f"TypeError: bagua_net, group.*: {what} must be an integer, not ", text), text


def options(here: Here) -> str:
    return refusal(lambda: dist.new_group(pg_options=object()))


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_options_are_refused(ranks: Ranks) -> None:
    for told in ranks.run(options):
        assert re.search(r"ValueError: the bagua_net backend has no options; .* BAGUA_NET_\*", told)
