# SPDX-License-Identifier: MIT
"""nn.Module.with_bagua and DistributedDataParallel in Bagua's form.

Bagua's ``with_bagua`` returned the model itself, and scripts rely on it: they keep using the model that they had, and
its ``state_dict`` has plain names. So the model stays what it is, and its forward goes through a
DistributedDataParallel of itself while it is in training mode. In evaluation mode, where one rank may be alone, it
does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from .. import algorithms as ours
from ..algorithms._context import device_near
from ..algorithms._ddp import ddp_arguments, optimizer_for
from ..algorithms._registry import algorithm_of
from ._algorithms import settings
from ._communication import BaguaProcessGroup, _get_default_group
from ._optimizers import take_from_first


class AlgorithmAtWork:
    """``model.bagua_algorithm``. Bagua's methods take the model, which is known here."""

    def __init__(self, comm: ours.AlgorithmHandle) -> None:
        self._comm = comm

    def abort(self, model: Any = None) -> None:
        self._comm.pause()

    def resume(self, model: Any = None) -> None:
        self._comm.resume()


class _Inside(nn.Module):  # type: ignore[misc]
    """A model, called by the forward that it had."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._forward = model.forward
        self.warned = False
        self.own_forward = model.__dict__.get("forward")  # that of the instance, in the place of its class's

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._forward(*inputs, **named)


def with_bagua(
    self: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    algorithm: str | ours.Algorithm,
    process_group: Any = None,
    do_flatten: bool = True,
) -> nn.Module:
    """``model.with_bagua([optimizer], algorithm)``. It returns the model. All ranks begin with rank 0's weights, and
    with the states and settings of its optimizers."""
    _refuse_ignored_parameters(self)
    _end_former(self)
    _share(self, optimizers, process_group)
    inside = _Inside(self)
    wrapped = _wrapped(inside, optimizers, algorithm, process_group, gradient_as_bucket_view=do_flatten)
    # Past nn.Module's own: the model would contain what contains it.
    kept = {"bagua_ddp": wrapped, "bagua_algorithm": AlgorithmAtWork(wrapped.bagua), "bagua_optimizers": optimizers}
    for name, value in kept.items():
        object.__setattr__(self, name, value)
    self.forward = partial(_call, self, inside, wrapped)
    return self


def _wrapped(
    module: nn.Module,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    algorithm: str | ours.Algorithm,
    process_group: Any,
    **arguments: Any,
) -> DistributedDataParallel:
    """In a DistributedDataParallel with these arguments. Its attribute ``bagua`` is what ``attach`` returned."""
    chosen = algorithm_of(algorithm)
    optimizer = optimizer_for(chosen, [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers)
    group = torch_group(process_group)
    wrapped = DistributedDataParallel(module, process_group=group, **ddp_arguments(chosen, arguments))
    wrapped.bagua = ours.attach(wrapped, optimizer, chosen)
    return wrapped


def _call(model: nn.Module, inside: _Inside, wrapped: nn.Module, *inputs: Any, **named: Any) -> Any:
    if model.training:
        return wrapped(*inputs, **named)
    output = inside(*inputs, **named)
    if wrapped.bagua.algorithm.averages != "weights":
        _warn_at_backward(inside, output)
    return output


def _warn_at_backward(inside: _Inside, output: Any) -> None:
    """Once, and not before: a script may evaluate without ``torch.no_grad``."""

    def warn(_: torch.Tensor) -> None:
        if not inside.warned and any(each.requires_grad for each in inside.parameters()):
            inside.warned = True
            warnings.warn(
                "bagua_net.compat: with_bagua: gradients were made of a forward pass in evaluation mode, and these are "
                "averaged over no ranks; call model.train() before it",
                stacklevel=2,
            )

    for each in tree_leaves(output):
        if isinstance(each, torch.Tensor) and each.grad_fn is not None:
            each.register_hook(warn)


def _end_former(model: nn.Module) -> None:
    if "bagua_ddp" in model.__dict__:
        model.bagua_ddp.bagua.detach()
        del model.forward
        if (own := model.bagua_ddp.module.own_forward) is not None:
            model.forward = own


def _refuse_ignored_parameters(model: nn.Module) -> None:
    if getattr(model, "_bagua_params_and_buffers_to_ignore", None):
        raise ValueError(
            "bagua_net.compat: _bagua_params_and_buffers_to_ignore is not kept; give these parameters "
            "requires_grad_(False), or wrap only the part of the model that the ranks share"
        )


def _share(
    model: nn.Module, optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], process_group: Any
) -> None:
    group = torch_group(process_group)
    take_from_first(
        [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers,
        _get_default_group().torch_group if group is None else group,
        device_near(model),
    )


def torch_group(group: Any) -> dist.ProcessGroup | None:
    return group.torch_group if isinstance(group, BaguaProcessGroup) else group


def distributed_data_parallel(
    module: nn.Module,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    broadcast_buffers: bool = True,
    process_group: Any = None,
    bucket_cap_mb: int = 25,
    find_unused_parameters: bool = False,
    check_reduction: bool = False,
    gradient_as_bucket_view: bool = True,
    optimizers: Sequence[torch.optim.Optimizer] = (),
    algorithm: str | ours.Algorithm | None = None,
) -> DistributedDataParallel:
    """``DistributedDataParallel(model, optimizers=[optimizer], algorithm=algorithm)``: torch's own, with the algorithm.
    Without an algorithm, gradients are averaged exactly. All ranks begin as in :func:`with_bagua`."""
    _share(module, optimizers, process_group)
    chosen = settings("gradient_allreduce") if algorithm is None else algorithm
    wrapped = _wrapped(
        module,
        optimizers or _unused(module, chosen),
        chosen,
        process_group,
        device_ids=device_ids,
        output_device=output_device,
        dim=dim,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused_parameters,
        gradient_as_bucket_view=gradient_as_bucket_view,
        **({} if broadcast_buffers else {"broadcast_buffers": False}),
    )
    wrapped.bagua_algorithm = AlgorithmAtWork(wrapped.bagua)
    wrapped.bagua_optimizers = optimizers
    return wrapped


def _unused(module: nn.Module, algorithm: str | ours.Algorithm) -> Sequence[torch.optim.Optimizer]:
    """Averages of gradients concern no optimizer, and Bagua's form has a default without one."""
    if isinstance(algorithm, ours.Algorithm) and algorithm.averages == "gradients":
        return [torch.optim.SGD(module.parameters(), lr=0.0)]
    return ()
