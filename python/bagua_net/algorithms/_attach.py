# SPDX-License-Identifier: MIT
"""attach: an algorithm begins to work on a model."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ._agreement import Description, agreed, description
from ._algorithm import Algorithm, AlgorithmImpl
from ._compressed import hosts_of
from ._context import AlgorithmContext, ModelContext, device_near, one_device, runner_for, trained_parameters
from ._dispatcher import refuse_compiled_autograd, refuse_other_hooks, release
from ._grad_scaler import enabled, unwatch_scalers, watch_scalers
from ._groups import Groups, forget_where_ranks_differ
from ._registry import algorithm_of
from ._sharded import refuse_other_calls, shard_group_of

_VERSION = 1

#: Models that an algorithm works on.
_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class AlgorithmHandle:
    """An algorithm at work on a model: what :func:`attach` returns. The training loop's thread calls its methods, all
    ranks the same ones at the same step. After :meth:`detach` they raise RuntimeError."""

    def __init__(self, algorithm: Algorithm, context: AlgorithmContext, impl: AlgorithmImpl) -> None:
        self._algorithm = algorithm
        self._ranks = context.size
        self._context = context
        self._impl: AlgorithmImpl | None = impl

    def __getstate__(self) -> dict[str, Any]:
        """A copy, as of a model that has it for an attribute, is a detached one."""
        return {"_algorithm": self._algorithm, "_ranks": self._ranks, "_impl": None}

    def __repr__(self) -> str:
        state = "" if self._impl is not None else ", detached"
        return f"<bagua_net.algorithms {self._algorithm!r} on {self._ranks} ranks{state}>"

    @property
    def algorithm(self) -> Algorithm:
        """The settings in force."""
        return self._algorithm

    @property
    def chosen(self) -> str | None:
        """What ``auto`` has chosen: "allreduce", "bfloat16" or "bytegrad". None while it tries, and with the other
        algorithms."""
        return self._alive().chosen

    def stats(self) -> dict[str, float]:
        """Counters of this rank since the attach: ``elements`` of gradients or parameters that it contributed,
        ``bytes`` that it sent for them, also counted where ranks of one host share memory and send none, and what the
        algorithm counts besides. Of codes that go between hosts only, those alone."""
        return self._alive().stats()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, of this rank: residuals are its own, so every rank keeps its own dictionary. Plain
        values and tensors: ``torch.load(weights_only=True)`` reads them."""
        state = self._alive().state_dict()
        return {
            "version": _VERSION,
            "algorithm": self._algorithm.name,
            "rank": self._context.rank,
            "ranks": self._context.size,
            "state": state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict` of the same algorithm, on the same rank of as many ranks.

        Raises:
            ValueError: it is of another algorithm, rank or number of ranks, or names other parameters.
        """
        impl = self._alive()
        here = {
            "version": _VERSION,
            "algorithm": self._algorithm.name,
            "rank": self._context.rank,
            "ranks": self._context.size,
        }
        for what, value in here.items():
            if state.get(what) != value:
                raise ValueError(
                    f"bagua_net.algorithms: load_state_dict: the state's {what} is {state.get(what)!r}, and here it is "
                    f"{value!r}; with another number of ranks, or another algorithm, begin without the state"
                )
        impl.load_state_dict(state["state"])

    def pause(self) -> None:
        """From the next step on, gradients are averaged exactly, as by DDP. Where the ranks' weights may differ, they
        become equal first, as by :meth:`synchronize`."""
        self._alive().pause()

    def resume(self) -> None:
        """Ends the pause of :meth:`pause`."""
        self._alive().resume()

    def synchronize(self) -> None:
        """Makes the weights equal on all ranks: their exact mean. With algorithms that average gradients they are equal
        anyway, and nothing is sent."""
        self._alive().synchronize()

    def detach(self, *, synchronize: bool = True) -> None:
        """Ends the algorithm: the model trains as it did before :func:`attach`, and another one may be attached. A
        second call does nothing.

        Args:
            synchronize: first makes the weights equal, as :meth:`synchronize`; not after an exception, since the other
                ranks may not come. False: they stay as they are, and other ranks are waited for only in what is under
                way, such as the average that "decentralized" has begun in a forward pass; "async" ends with a round of
                all ranks all the same.
        """
        impl, self._impl = self._impl, None
        if impl is None:
            return
        try:
            has_model = self._context.wrapper() is not None
            if synchronize and has_model and not (self._context.runner.failed or impl.failed):
                impl.synchronize()
        finally:
            self._end(impl)

    def _end(self, impl: AlgorithmImpl) -> None:
        unwatch_scalers(impl)
        try:
            impl.stop()
        finally:
            self._context.runner.stop()
            if not (self._context.runner.failed or impl.failed):
                self._context.groups.give_back()
            model = self._context.wrapper()
            if model is not None:
                release(model)
                _attached.discard(model)

    def _alive(self) -> AlgorithmImpl:
        if self._impl is None:
            raise RuntimeError("bagua_net.algorithms: this algorithm was detached")
        return self._impl


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str | Algorithm,
    *,
    replicate: DeviceMesh | None = None,
    scaler: Any = None,
) -> AlgorithmHandle:
    """Lets an algorithm average the gradients, or the parameters, of a model. Every rank of the model's group calls it
    after the model is wrapped and before the first step, with the same settings.

    Args:
        model: a ``DistributedDataParallel``, or a module after ``fully_shard``; or what ``torch.compile`` made of it.
        optimizer: the one that trains it.
        algorithm: settings such as ``ByteGrad(bits=4)``, or a name for the settings' defaults: "bytegrad".
        replicate: with ``fully_shard`` on one dimension of a mesh, its other dimension: the mesh of this rank's
            replicas. Between them the algorithm averages, and FSDP2's reduce-scatter stays as it is.
        scaler: the ``torch.amp.GradScaler`` in use, so that what is kept from step to step follows its scale.

    Raises:
        ValueError: the model or the optimizer is nothing for this algorithm, or the ranks differ. One line says what.
            Where one rank refuses, all raise, and the others name it; but a rank whose model is not wrapped has no
            group to tell the others, which wait for the group's timeout.
        TypeError: the model is no module, the optimizer none of torch, or the algorithm neither a name nor settings.
        RuntimeError: the ranks could not compare their settings, since some of them did not come; or the algorithm
            could not begin, as where a collective fails.
    """
    if not isinstance(model, (DistributedDataParallel, FSDPModule)):
        model = getattr(model, "_orig_mod", model)  # what torch.compile has put around it
    group = _group_of(model, replicate)
    of_mesh = [group] if replicate is None else [group, shard_group_of(model)]
    prepare = partial(_prepared, model, optimizer, algorithm, scaler, group, replicate)
    chosen, model_context = agreed(prepare, of_mesh, device_near(model))
    context, impl = _started(chosen, model_context, of_mesh, replicate is not None)
    weakref.finalize(model, context.runner.close)
    _attached.add(model)
    watch_scalers(impl)
    return AlgorithmHandle(chosen, context, impl)


def _started(
    chosen: Algorithm, model_context: ModelContext, groups: Sequence[dist.ProcessGroup], has_replicas: bool
) -> tuple[AlgorithmContext, AlgorithmImpl]:
    """Where one rank cannot begin, all raise, and the model trains as before on all. The groups that were made are not
    used again: a rank may be in one."""
    model = model_context.wrapper()
    undo = contextlib.ExitStack()
    undo.callback(release, model)

    def start() -> tuple[tuple[AlgorithmContext, AlgorithmImpl], Description]:
        context = _begun(chosen, model_context, undo)
        on_buckets = isinstance(model, DistributedDataParallel)
        impl = chosen._start(context) if on_buckets else chosen._start_sharded(context, has_replicas)
        undo.callback(impl.abandon)
        return (context, impl), {}

    try:
        return agreed(start, groups, model_context.device)
    except BaseException:
        undo.close()
        raise


def _begun(chosen: Algorithm, model_context: ModelContext, undo: contextlib.ExitStack) -> AlgorithmContext:
    """The groups before what may fail on one rank alone, as the runner: the others wait for all ranks to make them."""
    forget_where_ranks_differ(model_context.group, model_context.device)
    made = Groups()
    own = made.like(model_context.group)
    hosts = hosts_of(own, model_context.device, made) if chosen._adds_by_host() else None
    runner = runner_for(model_context.device, f"bagua_net {chosen.name}")
    undo.callback(runner.close)
    return AlgorithmContext(**vars(model_context), own=own, groups=made, runner=runner, hosts=hosts)


def _group_of(model: nn.Module, replicate: DeviceMesh | None) -> dist.ProcessGroup:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"bagua_net.algorithms: attach(model, optimizer, algorithm): the model is of type {type(model).__name__}, "
            "which is no torch.nn.Module"
        )
    if isinstance(model, FSDPModule):
        shards = shard_group_of(model)
        return shards if replicate is None else replicate.get_group()
    if replicate is not None:
        raise ValueError(f"bagua_net.algorithms: attach: replicate is for fully_shard, not for {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError(
            f"bagua_net.algorithms: attach: fully_shard was applied inside {type(model).__name__}, and not to it; "
            "apply it to the whole model last"
        )
    raise ValueError(
        f"bagua_net.algorithms: attach: {type(model).__name__} is not distributed; wrap it first: "
        "DistributedDataParallel(model)"
    )


def _prepared(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str | Algorithm,
    scaler: Any,
    group: dist.ProcessGroup,
    replicate: DeviceMesh | None,
) -> tuple[tuple[Algorithm, ModelContext], Description]:
    """Without a message to any rank, and without a change of the model. Then what the ranks compare."""
    chosen = algorithm_of(algorithm)
    optimizer, scaler = _unwrapped(optimizer), enabled(scaler)
    if model in _attached:
        raise ValueError("bagua_net.algorithms: attach: an algorithm works on this model already; detach it first")
    module = model.module if isinstance(model, DistributedDataParallel) else model
    parameters = trained_parameters(module, getattr(model, "parameters_to_ignore", ()))
    device = one_device(parameters)
    _refuse_sparse_and_complex(module, parameters)
    refuse_compiled_autograd()
    context = ModelContext(module, weakref.ref(model), optimizer, scaler, parameters, device, group)
    compared = description(chosen.name, chosen._settings(), parameters)
    compared["scaler"] = "none" if context.scaler is None else "a GradScaler"
    if isinstance(model, DistributedDataParallel):
        refuse_other_hooks(model)
        compared |= chosen._check(context)
    else:
        if replicate is not None:
            _check_replicas(group, shard_group_of(model))
        refuse_other_calls(model, replicate is not None)
    return (chosen, context), compared


def _check_replicas(replicas: dist.ProcessGroup, shards: dist.ProcessGroup) -> None:
    """Raises ValueError: some of the ranks that hold parts of one model are averaged as if they were replicas."""
    same, parts = (dist.get_process_group_ranks(group) for group in (replicas, shards))
    if set(same) & set(parts) != {dist.get_rank()}:
        raise ValueError(
            f"bagua_net.algorithms: attach: replicate is of the ranks {same}, and fully_shard shards the model over "
            f"the ranks {parts}; pass the mesh's other dimension, whose ranks hold the same shard"
        )


def _unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """accelerate's wrapper has the user's, which takes hooks. Raises TypeError: it is no optimizer."""
    inside = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inside, torch.optim.Optimizer):
        raise TypeError(
            "bagua_net.algorithms: attach(model, optimizer, algorithm): the optimizer is of type "
            f"{type(inside).__name__}, which is no torch.optim.Optimizer"
        )
    return inside


def _refuse_sparse_and_complex(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    for name, each in module.named_modules():
        trained = any(parameter.requires_grad for parameter in each.parameters(recurse=False))
        if trained and getattr(each, "sparse", False) is True:
            raise ValueError(
                f"bagua_net.algorithms: attach: {name or type(module).__name__} has sparse gradients, which cannot be "
                "compressed; use sparse=False"
            )
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise ValueError(
                f"bagua_net.algorithms: attach: the parameter {name} is complex; keep its real and imaginary parts as "
                "two real parameters (torch.view_as_real)"
            )
