# SPDX-License-Identifier: MIT
"""An algorithm goes on from a checkpoint's state, or begins anew where that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algorithms import AlgorithmHandle
from ..algorithms._checkpoint import load, mismatch
from ..algorithms._objects import gathered

_BEFORE = "bagua_net.algorithms: load_state_dict: "
_AFTER = "; begin without the state"


def resumed(comm: AlgorithmHandle, state: Mapping[str, Any]) -> str:
    """Loads the state of all ranks, as ``gathered`` gave it, on every rank or on none. All ranks call it.

    Returns:
        why it was loaded on none, in words: the algorithm is then as it was before. Empty: it was loaded.
    """
    before = comm.state_dict()
    reasons = gathered(_loaded(comm, state), comm._context.group, comm._context.device)
    reason: str = next(filter(None, reasons), "")
    if reason:
        comm.load_state_dict(before)
    return reason


def _loaded(comm: AlgorithmHandle, state: Mapping[str, Any]) -> str:
    reason = mismatch(comm, state)
    if reason:
        return reason
    try:
        load(comm, state)
    except Exception as error:  # whatever it is, the other ranks wait for it
        return str(error).removeprefix(_BEFORE).removesuffix(_AFTER)
    return ""
