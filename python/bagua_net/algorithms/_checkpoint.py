# SPDX-License-Identifier: MIT
"""The states of all ranks in one, for frameworks that save a checkpoint on rank 0 alone.

Residuals and replicas differ from rank to rank. So do weights and the optimizer's state, where the ranks average
weights and train apart in between; those are in the state too, and in no other part of such a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from ._attach import AlgorithmHandle
from ._context import AlgorithmContext
from ._flat import difference
from ._objects import receive, send

_State = dict[str, Any]


class GatheredState:
    """What a checkpoint of all ranks holds of an algorithm. All ranks call both methods, at the same step.

    >>> accelerator.register_for_checkpointing(GatheredState(comm))      # doctest: +SKIP

    Raises:
        ValueError: the model is one of ``fully_shard``, whose checkpoints are not rank 0's either.
    """

    def __init__(self, comm: AlgorithmHandle) -> None:
        if isinstance(comm._context.module, FSDPModule):
            raise ValueError(
                "bagua_net.algorithms: GatheredState is for DistributedDataParallel; with fully_shard every rank "
                "saves its own shards, and comm.state_dict() with them"
            )
        self._comm = comm

    def state_dict(self) -> _State:
        """On rank 0 the states of all ranks, in the memory of the host; on the others nothing. Plain values and
        tensors: ``torch.load(weights_only=True)`` reads them."""
        return gathered(self._comm._context.group, of_this_rank(self._comm), self._comm._context.device)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes this rank's part.

        Raises:
            ValueError: it is of another algorithm or number of ranks, or of other parameters.
        """
        reason = mismatch(self._comm, state)
        if reason:
            raise ValueError(f"bagua_net.algorithms: load_state_dict: {reason}; begin without the state")
        load(self._comm, state)


def of_this_rank(comm: AlgorithmHandle) -> _State:
    """In the memory of the host."""
    state: _State = {"algorithm": comm.algorithm.name, "state": comm.state_dict()}
    if comm.algorithm.averages == "weights":
        state |= {"weights": _weights(comm._context), "optimizer": comm._context.optimizer.state_dict()}
    on_host: _State = _on_host(state)
    return on_host


def gathered(group: dist.ProcessGroup, own: _State, near: torch.device) -> _State:
    """On rank 0 those of all ranks, by rank; nothing on the others. All ranks of the model's group call it. They come
    one after the other: the pickled state of one rank at a time is in memory. near: the model's device."""
    if group.rank() != 0:
        send(own, group, 0, near)
        return {}
    return {"ranks": [own, *(receive(group, rank, near) for rank in range(1, group.size()))]}


def mismatch(comm: AlgorithmHandle, state: Mapping[str, Any]) -> str:
    """Why this state, of :func:`gathered`, is not for this algorithm and these ranks; empty if it is."""
    ranks = state.get("ranks")
    if not ranks:
        return "the state is empty, as it is on all ranks but the first; load the first one's on every rank"
    if ranks[0]["algorithm"] != comm.algorithm.name:
        return f"the state is of the algorithm {ranks[0]['algorithm']!r}, and here {comm.algorithm.name!r} is at work"
    if len(ranks) != comm._context.size:
        return f"the state is of {len(ranks)} ranks, and here are {comm._context.size}"
    own = ranks[comm._context.rank]  # parameters that DDP ignores may have other shapes on other ranks
    return difference(own["weights"], _weights(comm._context)) if "weights" in own else ""


def load(comm: AlgorithmHandle, state: Mapping[str, Any]) -> None:
    """This rank's part of what :func:`gathered` gave."""
    own = state["ranks"][comm._context.rank]
    comm.load_state_dict(own["state"])  # first: it ends what would still change the weights
    if "weights" in own:
        _load_weights(comm._context, own["weights"])
        comm._context.optimizer.load_state_dict(_on_host(own["optimizer"]))  # a copy, which training changes


def _weights(context: AlgorithmContext) -> dict[str, torch.Tensor]:
    """Of all parameters, also of those that DistributedDataParallel ignores, and of the buffers, which it does not send
    then: of those that checkpoints have."""
    buffers = dict(context.module.named_buffers())
    for path, part in context.module.named_modules():
        for name in part._non_persistent_buffers_set:
            buffers.pop(f"{path}.{name}" if path else name, None)
    return {**dict(context.module.named_parameters()), **buffers}


def _load_weights(context: AlgorithmContext, weights: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _weights(context).items():
            tensor.copy_(weights[name])


def _on_host(value: Any) -> Any:
    """A copy without any tensor of a device, or of one that training goes on to change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_host(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(each) for each in value)
    return value
