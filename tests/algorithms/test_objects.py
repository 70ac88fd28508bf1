# SPDX-License-Identifier: MIT
"""Python objects between the ranks: on which device they travel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

from bagua_net.algorithms import GatheredState, _objects, attach
from tests.algorithms.models import ddp
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
