# SPDX-License-Identifier: MIT
"""bagua_net.compat: Bagua's collectives give what their names say, over groups of any backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from bagua_net.compat import _communication as communication
from bagua_net.compat._communication import BaguaProcessGroup, CommMember, ReduceOp
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])


class _Call(NamedTuple):
    """On one rank: where a collective runs, and what this rank and all ranks have."""

    comm: Any
    rank: int
    size: int
    own: torch.Tensor  # (4)
    of_all: torch.Tensor  # (ranks × 4), by rank

    @property
    def last(self) -> int:
        return self.size - 1

    def of(self, rank: int) -> torch.Tensor:
        return self.of_all.view(self.size, 4)[rank]

    @property
    def total(self) -> torch.Tensor:
        return self.of_all.view(self.size, 4).sum(0)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, -1)


def _all_reduces(call: _Call) -> None:
    got = _like(call.own)
    communication.allreduce(call.own, got, comm=call.comm)
    assert torch.equal(got, call.total)
    assert torch.equal(call.own, call.of(call.rank))
    got = call.own.clone()
    communication.allreduce_inplace(got, ReduceOp.MAX, call.comm)
    assert torch.equal(got, call.of(call.last))
    pair = [call.own.clone(), call.own.clone() * 2]
    communication.allreduce_coalesced_inplace(pair, comm=call.comm)
    assert torch.equal(pair[0], call.total)
    assert torch.equal(pair[1], 2 * call.total)


def _reduces(call: _Call) -> None:
    got = _like(call.own)
    communication.reduce(call.own, got, call.last, comm=call.comm)
    assert torch.equal(got, call.total if call.rank == call.last else _like(call.own))
    got = call.own.clone()
    communication.reduce_inplace(got, call.last, comm=call.comm)
    assert torch.equal(got, call.total if call.rank == call.last else call.own)


def _broadcasts(call: _Call) -> None:
    got = call.own.clone()
    communication.broadcast(got, call.last, call.comm)
    assert torch.equal(got, call.of(call.last))
    pair = [call.own.clone(), call.own.clone() * 2]
    communication.broadcast_coalesced(pair, call.last, call.comm)
    assert torch.equal(pair[0], call.of(call.last))
    assert torch.equal(pair[1], 2 * call.of(call.last))
    assert communication.broadcast_object({"rank": call.rank}, call.last, call.comm) == {"rank": call.last}


def _gathers_and_scatters(call: _Call) -> None:
    got = _like(call.of_all)
    communication.allgather(call.own, got, call.comm)
    assert torch.equal(got, call.of_all)
    got = _like(call.of_all)
    got.view(call.size, 4)[call.rank] = call.own
    communication.allgather_inplace(got, call.comm)
    assert torch.equal(got, call.of_all)
    got = _like(call.of_all)
    communication.gather(call.own, got, call.last, call.comm)
    assert torch.equal(got, call.of_all if call.rank == call.last else _like(call.of_all))
    got = _like(call.own)
    communication.scatter(call.of_all, got, 0, call.comm)
    assert torch.equal(got, call.own)
    odd = torch.zeros(4 * call.size + 1)
    assert "no equal parts" in refusal(lambda: communication.gather(call.own, odd, call.rank, call.comm))


def _reduce_scatters(call: _Call) -> None:
    sent = call.of_all + 100 * call.rank
    summed = call.size * call.of(call.rank) + 100 * sum(range(call.size))
    got = _like(call.own)
    communication.reduce_scatter(sent, got, comm=call.comm)
    assert torch.equal(got, summed)
    got = sent.clone()
    communication.reduce_scatter_inplace(got, comm=call.comm)
    assert torch.equal(got.view(call.size, 4)[call.rank], summed)
    assert torch.equal(got.view(call.size, 4)[call.rank - 1], sent.view(call.size, 4)[call.rank - 1])


def _exchanges(call: _Call) -> None:
    sent = call.of_all + 100 * call.rank
    exchanged = torch.cat([call.of(call.rank) + 100 * each for each in range(call.size)])
    got = _like(sent)
    communication.alltoall(sent, got, call.comm)
    assert torch.equal(got, exchanged)
    got = sent.clone()
    communication.alltoall_inplace(got, call.comm)
    assert torch.equal(got, exchanged)


def _exchanges_pieces(call: _Call) -> None:
    sent = call.of_all + 100 * call.rank
    exchanged = torch.cat([call.of(call.rank) + 100 * each for each in range(call.size)]).view(call.size, 4)
    counts, displs = [3] * call.size, [4 * each for each in range(call.size)]
    got = _like(sent)
    communication.alltoall_v(sent, counts, displs, got, counts, displs, call.comm)
    assert torch.equal(got.view(call.size, 4)[:, :3], exchanged[:, :3])
    assert torch.equal(got.view(call.size, 4)[:, 3], _like(sent).view(call.size, 4)[:, 3]), "between the pieces"
    got = sent.clone()
    communication.alltoall_v_inplace(got, counts, displs, call.comm)
    assert torch.equal(got.view(call.size, 4)[:, :3], exchanged[:, :3])


def _sends(call: _Call) -> None:
    if call.rank == 0:
        communication.send(call.own, call.last, call.comm)
    if call.rank == call.last:
        got = _like(call.own)
        communication.recv(got, 0, call.comm)
        assert torch.equal(got, call.of(0))
    communication.barrier(call.comm)


def _on_a_rank(here: Here, backend: str, what: Callable[[_Call], None]) -> None:
    comm = BaguaProcessGroup(here.gloo).get_global_communicator() if backend == "gloo" else None
    if comm is not None:
        assert (comm.rank(), comm.nranks()) == (here.rank, here.size)
    of_all = torch.cat([torch.arange(4.0) + each for each in range(here.size)])
    what(_Call(comm, here.rank, here.size, torch.arange(4.0) + here.rank, of_all))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "what",
    [
        _all_reduces,
        _reduces,
        _broadcasts,
        _gathers_and_scatters,
        _reduce_scatters,
        _exchanges,
        _exchanges_pieces,
        _sends,
    ],
)
def test_collectives(ranks: Ranks, what: Callable[[_Call], None], backend: str) -> None:
    ranks.run(_on_a_rank, backend, what)


def _part_of_the_ranks(here: Here) -> None:
    group = communication.new_group([1, 2])
    comm = group.get_global_communicator()
    tensor = torch.tensor([float(here.rank)])
    communication.allreduce_inplace(tensor, comm=comm)
    communication.broadcast(tensor, 1, comm)
    assert tensor.item() == (3.0 if here.rank in (1, 2) else here.rank)
    assert (comm is CommMember.NON_COMM_MEMBER) == (here.rank in (0, 3))
    assert communication.from_torch_group(dist.group.WORLD).get_global_communicator().nranks() == here.size
    assert communication.is_initialized()
    communication.init_process_group()  # there is one


def test_a_group_of_some_ranks(four: Ranks) -> None:
    four.run(_part_of_the_ranks)
