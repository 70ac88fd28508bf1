# SPDX-License-Identifier: MIT
"""fully_shard between two ranks, ByteGrad between two such pairs. Every rank saves what it keeps."""

from __future__ import annotations

import digits
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bagua_net.algorithms import attach
from tests.algorithms.jobs import common

_SAVED, _END = 4, 8


def main() -> None:
    options = common.options()
    dist.init_process_group("bagua_net")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = digits.network()
    for module in [net[0], net[2], net]:
        fully_shard(module, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(net.parameters(), digits.RATE, momentum=0.9)
    comm = attach(net, optimizer, "bytegrad", replicate=mesh["replicate"])
    # Replicas are equal: one pair's shards are the model. What the algorithm keeps is each rank's own.
    shards = mesh["shard"].get_group()
    whole = str(options.directory / f"of-pair-{mesh['replicate'].get_local_rank()}")
    own = options.directory / f"of-rank-{dist.get_rank()}.pt"
    for step in range(_SAVED if options.resume else 0, _END):
        if step == _SAVED:
            weights, moments = get_state_dict(net, optimizer)
            state = {"weights": weights, "moments": moments}
            if options.resume:
                dcp.load(state, checkpoint_id=whole, process_group=shards)
                set_state_dict(net, optimizer, model_state_dict=state["weights"], optim_state_dict=state["moments"])
                comm.load_state_dict(torch.load(own, weights_only=True))
            else:
                dcp.save(state, checkpoint_id=whole, process_group=shards)
                torch.save(comm.state_dict(), own)
        optimizer.zero_grad()
        common.loss_of(net, step).backward()
        optimizer.step()
    assert comm.stats()["bytes"] > 0
    common.report("bytegrad", {name: each.full_tensor() for name, each in net.named_parameters()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
