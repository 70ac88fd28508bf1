# SPDX-License-Identifier: MIT
"""All ranks begin with the states and settings of rank 0's optimizers, as with Bagua: a script may load its checkpoint
on rank 0 alone. DistributedDataParallel makes only the weights and buffers equal."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from ..algorithms._objects import from_first, gathered

_State = dict[str, Any]


def take_from_first(optimizers: Sequence[Any], group: dist.ProcessGroup, near: torch.device | None) -> None:
    """Loads the states of the group's first rank on the others. All its ranks call it. near: the model's device.

    Raises:
        ValueError: on all ranks; one of them has other optimizers than the first.
    """
    packed: _Packed = from_first(_packed(optimizers) if group.rank() == 0 else None, group, near)
    own = packed.why_not if group.rank() == 0 or packed.why_not else _loaded(optimizers, pickle.loads(packed.states))
    reasons = gathered(own, group, near)
    ranks = dist.get_process_group_ranks(group)
    for rank, reason in zip(ranks, reasons, strict=True):
        if reason:
            raise ValueError(
                f"bagua_net.compat: with_bagua: the optimizers' states of rank {ranks[0]} are nothing for rank {rank}: "
                f"{reason}; give the same optimizers on all ranks"
            )


class _Packed(NamedTuple):
    """What the first rank sends: it does not raise while the others wait for it."""

    states: bytes
    why_not: str


def _packed(optimizers: Sequence[Any]) -> _Packed:
    try:
        return _Packed(pickle.dumps([_on_host(each) for each in optimizers]), "")
    except Exception as error:  # of an optimizer's own class, or of what is in its groups
        return _Packed(b"", f"it cannot send them: {type(error).__name__}: {error}")


def _on_host(optimizer: Any) -> _State | None:
    """The state, without tensors of a device, which would be on the sender's, and without the rest of what a tensor is
    a view of. None: it is no optimizer, which is refused later."""
    if not isinstance(optimizer, Optimizer):
        return None
    state: _State = tree_map_only(torch.Tensor, lambda tensor: tensor.to("cpu", copy=True), optimizer.state_dict())
    return state


def _loaded(optimizers: Sequence[Any], states: Sequence[_State | None]) -> str:
    """Why they were not; empty: they were. An optimizer moves tensors to its parameters' devices."""
    if len(optimizers) != len(states):
        return f"{len(states)} were given there, and {len(optimizers)} here"
    for optimizer, state in zip(optimizers, states, strict=True):
        if isinstance(optimizer, Optimizer) and state is not None:
            try:
                _load(optimizer, state)
            except Exception as error:  # of the optimizer's own class: whatever it is, the other ranks wait for it
                return f"{type(optimizer).__name__}: {error}"
    return ""


def _load(optimizer: Optimizer, state: _State) -> None:
    """Nothing where neither optimizer was stepped, and their settings are equal: a script may have a group in its
    hands, and loading makes new ones."""
    own = optimizer.state_dict()
    if own["state"] or state["state"] or _settings(own) != _settings(state):
        optimizer.load_state_dict(state)


def _settings(state: _State) -> bytes:
    """To compare: ``==`` of tensors and arrays is no answer, and a pickled tensor has an address in it."""
    return pickle.dumps(tree_map_only(torch.Tensor, lambda tensor: tensor.tolist(), state["param_groups"]))
