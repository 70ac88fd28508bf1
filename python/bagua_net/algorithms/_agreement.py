# SPDX-License-Identifier: MIT
"""All ranks attach the same algorithm, with the same settings, to the same model, or all of them raise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ._objects import gathered

Description = dict[str, Any]
_Made = TypeVar("_Made")

_PREFIXES = ("bagua_net.algorithms: ", "attach: ")


class _Refusal(NamedTuple):
    """What a rank sends in the place of its description, so that nobody waits for it."""

    why: str  # one line


def description(algorithm: str, settings: Mapping[str, Any], parameters: Mapping[str, nn.Parameter]) -> Description:
    """What the ranks compare: plain values by what they are called in a message."""
    shapes = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in parameters.items()]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
    return {
        "algorithm": algorithm,
        **settings,
        "trained parameters": len(shapes),
        "elements": sum(parameter.numel() for parameter in parameters.values()),
        "digest of the parameters' names, shapes and types": digest,
    }


def agreed(
    prepare: Callable[[], tuple[_Made, Description]], groups: Sequence[dist.ProcessGroup], near: torch.device | None
) -> _Made:
    """What ``prepare`` makes, with what the ranks compare. Every rank of the groups calls this, and either all of them
    raise or none does.

    groups: of the model, or of each dimension of its mesh: what is wrong in one group is told in the next one, and so
    reaches every rank of the mesh.
    near: the model's device.

    Raises:
        Exception: what ``prepare`` raises on this rank.
        ValueError: another rank has raised, which is named with its reason; or two ranks differ.
    """
    try:
        made, own = prepare()
    except Exception as error:
        _outcome(_Refusal(f"rank {dist.get_rank()} refuses: {_reason(error)}"), groups, near)
        raise
    outcome = _outcome(own, groups, near)
    if isinstance(outcome, _Refusal):
        raise ValueError(f"bagua_net.algorithms: attach: {outcome.why}")
    return made


def _outcome(
    own: Description | _Refusal, groups: Sequence[dist.ProcessGroup], near: torch.device | None
) -> Description | _Refusal:
    """Raises RuntimeError: the ranks did not all come."""
    for group in groups:
        try:
            all_of = gathered(own, group, near)
        except RuntimeError as error:
            raise RuntimeError(
                f"bagua_net.algorithms: attach: the ranks could not compare their settings: {error}; every rank of the "
                "model calls attach, before its first step"
            ) from error
        own = _first_refusal(all_of, dist.get_process_group_ranks(group)) or own
    return own


def _first_refusal(all_of: Sequence[Description | _Refusal], ranks: Sequence[int]) -> _Refusal | None:
    """The same one on every rank. ranks: the numbers by which a user knows them."""
    for each in all_of:
        if isinstance(each, _Refusal):
            return each
    first, *others = [each for each in all_of if not isinstance(each, _Refusal)]
    for rank, other in zip(ranks[1:], others, strict=True):
        for what in [*first, *(key for key in other if key not in first)]:
            there, here = first.get(what, "nothing"), other.get(what, "nothing")
            if there != here:
                return _Refusal(
                    f"the ranks differ in {what}: {there!r} on rank {ranks[0]}, {here!r} on rank {rank}; use the same "
                    "on all ranks"
                )
    return None


def _reason(error: Exception) -> str:
    """In a line, without what the message of the other ranks begins with."""
    line = (str(error).splitlines() or [""])[0]
    for prefix in _PREFIXES:
        line = line.removeprefix(prefix)
    return line if isinstance(error, ValueError) else f"{type(error).__name__}: {line}"
