# SPDX-License-Identifier: MIT
"""with_bagua: DistributedDataParallel and attach in one call, in the words of Bagua's method of that name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ._algorithm import Algorithm
from ._attach import attach
from ._registry import algorithm_of

#: Arguments of DistributedDataParallel, that of torch 2.13 first: it still makes them equal at the beginning.
_ABOUT_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")


def with_bagua(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    algorithm: str | Algorithm,
    process_group: dist.ProcessGroup | None = None,
    *,
    scaler: Any = None,
    **arguments: Any,
) -> DistributedDataParallel:
    """The model in a ``DistributedDataParallel`` with an algorithm at work.

    >>> model = with_bagua(net, [optimizer], "bytegrad")            # doctest: +SKIP
    >>> model.bagua.stats()                                         # doctest: +SKIP

    Args:
        model: not wrapped yet, on its device.
        optimizers: those that train it.
        algorithm: settings such as ``ByteGrad(bits=4)``, or a name.
        process_group: the ranks that train it; None: all.
        scaler: the ``torch.amp.GradScaler`` in use.
        arguments: of ``DistributedDataParallel``.

    Returns:
        The wrapped model. Its attribute ``bagua`` is the :class:`Attachment`.

    Raises:
        ValueError: what :func:`attach` refuses, or several optimizers where the algorithm works with one.
    """
    chosen = algorithm_of(algorithm)
    optimizer = optimizer_for(chosen, [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers)
    wrapped = DistributedDataParallel(model, process_group=process_group, **ddp_arguments(chosen, arguments))
    wrapped.bagua = attach(wrapped, optimizer, chosen, scaler=scaler)
    return wrapped


def ddp_arguments(algorithm: Algorithm, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those given for ``DistributedDataParallel``, and what the algorithm needs besides: buffers that stay each rank's
    own after the first step, where ranks train apart."""
    if algorithm.averages != "weights" or not given.keys().isdisjoint(_ABOUT_BUFFERS):
        return dict(given)
    known = inspect.signature(DistributedDataParallel).parameters
    return {**given, next(name for name in _ABOUT_BUFFERS if name in known): False}


def optimizer_for(algorithm: Algorithm, optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """The one that the algorithm works with. Averages of gradients concern none, so there may be several.

    Raises:
        ValueError: no optimizer was given, or several for an algorithm that works with one.
    """
    if not optimizers:
        raise ValueError("bagua_net.algorithms: no optimizer was given; pass the one that trains the model")
    if len(optimizers) > 1 and algorithm.averages != "gradients":
        raise ValueError(
            f"bagua_net.algorithms: {algorithm.name} works with one optimizer, not with {len(optimizers)}; give one "
            "optimizer several parameter groups, or use an algorithm that averages gradients, such as bytegrad"
        )
    return optimizers[0]
