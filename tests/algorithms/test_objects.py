# SPDX-License-Identifier: MIT
"""Python objects between the ranks: on which device they travel, and in what pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from bagua_net.algorithms import GatheredState, _objects, attach
from tests.algorithms.models import backward, ddp
from tests.support.rank import Here
from tests.support.ranks import Ranks


@pytest.mark.parametrize(("moves", "wanted"), [("cuda", "cuda:1"), ("cpu", "cpu")])
def test_objects_travel_on_the_models_device_where_the_group_moves_that_type(
    monkeypatch: pytest.MonkeyPatch, moves: str, wanted: str
) -> None:
    """A script with NCCL need not call torch.cuda.set_device, and torch says "cuda" of its group."""
    monkeypatch.setattr(c10d, "_get_object_coll_device", lambda _: moves)
    group: Any = None
    assert _objects._device_of(group, torch.device("cuda:1")) == torch.device(wanted)
    assert _objects._device_of(group, None) == torch.device(moves)


def _devices_near(here: Here) -> set[Any]:
    near, device_of = set(), _objects._device_of

    def recorded(group: Any, device: Any) -> torch.device:
        near.add(str(device))
        return device_of(group, device)

    model = ddp(here, "bagua_net")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_objects, "_device_of", recorded)
        comm = attach(model, optimizer, "bytegrad")
        GatheredState(comm).state_dict()
    comm.detach()
    return near


def test_an_attach_and_a_checkpoint_know_the_models_device(two: Ranks) -> None:
    assert two.run(_devices_near) == [{"cpu"}, {"cpu"}]


def _largest_message(here: Here, piece: int) -> int:
    """In bytes, of a checkpoint of all ranks. Every rank's part of it is what the rank has, and of an object from rank
    1 to all."""
    largest = 0

    def measured(call: Any) -> Any:
        def moved(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            nonlocal largest
            largest = max(largest, tensor.nbytes)
            return call(tensor, *arguments, **named)

        return moved

    model = ddp(here, "bagua_net")
    comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "bytegrad")
    backward(here, model, 0)
    own = comm.state_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_objects, "_PIECE", piece)
        for name in ("send", "recv", "broadcast"):
            patch.setattr(dist, name, measured(getattr(dist, name)))
        parts = GatheredState(comm).state_dict().get("ranks", [])
        of_last = _objects.from_rank(own, dist.group.WORLD, here.size - 1, None)
    comm.detach()
    for rank, part in enumerate(parts):
        assert part["state"]["rank"] == rank
    wanted = _objects.from_rank(own, here.gloo, here.size - 1, None)
    for name, residual in wanted["state"]["residuals"].items():
        assert torch.equal(of_last["state"]["residuals"][name], residual)
        assert here.rank > 0 or torch.equal(parts[-1]["state"]["state"]["residuals"][name], residual)
    return largest


def test_a_state_travels_in_pieces(two: Ranks) -> None:
    """Neither a whole number of pieces nor less than one."""
    assert two.run(_largest_message, 1000) == [1000, 1000]
