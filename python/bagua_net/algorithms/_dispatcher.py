# SPDX-License-Identifier: MIT
"""The one hook that a DistributedDataParallel gets from this package.

DDP accepts a communication hook once, and never gives it up. The dispatcher is that hook, and what it passes buckets
to can be changed: by ``attach``, by ``detach``, by an algorithm with phases. A change takes effect with the first
bucket of a backward pass, so that all buckets of one pass go the same way.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Target = Callable[[Any], "torch.futures.Future[torch.Tensor]"]

#: A value does not hold its key: DDP holds its hook, and a model that is dropped goes with its dispatcher.
_dispatchers: weakref.WeakKeyDictionary[Any, HookDispatcher] = weakref.WeakKeyDictionary()


class HookDispatcher:
    """Passes the buckets of one model to a target; without one, averages them as DDP does."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._plain = Average(model.process_group)
        self._now: Target = self._plain
        self._next: Target = self._plain

    @property
    def plain(self) -> Target:
        """Averages a bucket exactly, on the model's own group."""
        return self._plain

    def set_target(self, target: Target | None) -> None:
        """From the next backward pass on. None: :attr:`plain`."""
        self._next = target or self._plain

    def release(self) -> None:
        """At once: no algorithm is kept. No backward pass is under way."""
        self._now = self._next = self._plain

    def __reduce__(self) -> tuple[type[CopiedHook], tuple[()]]:
        """``copy.deepcopy`` and ``pickle`` of the model ask for it: see :class:`CopiedHook`."""
        return CopiedHook, ()

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._refuse_mean_of_active()
            self._now = self._next
        return self._now(bucket)

    def _refuse_mean_of_active(self) -> None:
        """Raises RuntimeError: ``Join`` asks for the mean over the ranks that still have inputs, of which DDP tells no
        hook how many there are."""
        model = self._model()
        if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
            raise RuntimeError(
                "bagua_net.algorithms: under Join(divide_by_initial_world_size=False), a communication hook does not "
                "learn by how many ranks to divide; leave out divide_by_initial_world_size, or make a "
                "DistributedDataParallel to which no algorithm was ever attached. After a run under Join, which leaves "
                "its mark on the model, Join([model], enable=False) ends that"
            )


class CopiedHook:
    """What a copy of a model has in the place of the dispatcher, or of a forward hook, of an algorithm.

    torch registers no hook with a copy of a DistributedDataParallel, and keeps the state that the first one had. So a
    copy trains as plain DDP does, and another algorithm may be attached to it."""

    def __call__(self, *_: Any) -> None:
        """As a forward hook it does nothing."""


class ForwardPreHook:
    """Calls a method before each forward pass of a model."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def __call__(self, model: Any, _: Any) -> None:
        self._call(model)

    def __reduce__(self) -> tuple[type[CopiedHook], tuple[()]]:
        return CopiedHook, ()


class Average:
    """All-reduces a bucket and divides by the number of ranks: before the sum, as DDP does, against overflow."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(self._group.size())
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        future = work.get_future()
        return future.then(_only_tensor)


def _only_tensor(future: torch.futures.Future[Any]) -> torch.Tensor:
    value = future.value()
    return value[0] if isinstance(value, list) else value


def dispatcher_of(model: Any) -> HookDispatcher:
    """The model's, registered with DDP at the first call.

    Raises:
        ValueError: the model has another hook, or its reducer takes none.
    """
    known = _dispatchers.get(model)
    if known is not None:
        return known
    refuse_other_hooks(model)
    made = HookDispatcher(model)
    model.register_comm_hook(made, _dispatch)
    _dispatchers[model] = made
    return made


def release(model: Any) -> None:
    """The model's dispatcher, if it has one, keeps no algorithm."""
    known = _dispatchers.get(model)
    if known is not None:
        known.release()


def refuse_other_hooks(model: Any) -> None:
    """Raises ValueError: the model has no dispatcher, and takes none."""
    if model in _dispatchers:
        return
    _refuse_what_hooks_miss(model)
    if model._use_python_reducer:
        raise ValueError(
            'bagua_net.algorithms: DDP runs with torch._dynamo.config.optimize_ddp = "python_reducer", which traces '
            'communication hooks; use "ddp_optimizer", without compiled autograd'
        )
    # Those written in C++ are in the log alone.
    hooks = [hook.__qualname__ for hook, state in model._comm_hooks if not isinstance(state, CopiedHook)]
    hook = hooks[0] if hooks else model._get_ddp_logging_data().get("comm_hook")
    if hook:
        raise ValueError(
            f"bagua_net.algorithms: this DistributedDataParallel has the communication hook {hook}, and accepts one "
            "only; attach before register_comm_hook, or without it"
        )


def _refuse_what_hooks_miss(model: Any) -> None:
    """Raises ValueError: DDP will call the dispatcher with a part of the buckets, or not at all."""
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError(
            "bagua_net.algorithms: with skip_all_reduce_unused_params=True, DDP passes buckets that no rank used to no "
            "hook, and the first bucket tells an algorithm that a backward pass begins; leave it out"
        )
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in model.parameters()):
        raise ValueError(
            "bagua_net.algorithms: optimizers that step in the backward pass (_apply_optimizer_in_backward) make DDP "
            "register a hook of its own, and it accepts one only; step after the backward pass"
        )


def refuse_join(model: Any, algorithm: str) -> None:
    """In a backward pass, of which all ranks learn: those that have no inputs left pass empty gradients.

    Raises:
        RuntimeError: the model trains under ``Join``, and a rank without inputs makes no step of the optimizer, for
            which the others would wait.
    """
    if model._join_config.enable:
        raise RuntimeError(
            f"bagua_net.algorithms: {algorithm} cannot train under Join: a rank whose inputs have ended makes no step, "
            "and the others would wait for it; give all ranks as many batches (bagua_net.data), or use bytegrad. After "
            "a run under Join, which leaves its mark on the model, Join([model], enable=False) ends that"
        )


def _dispatch(state: HookDispatcher, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    return state(bucket)


# DDP compares annotations with these types, and does not evaluate strings.
_dispatch.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def refuse_compiled_autograd() -> None:
    """Raises ValueError: torch.compile traces backward, and with it what an algorithm does."""
    config = sys.modules.get("torch._dynamo.config")
    if config is not None and getattr(config, "compiled_autograd", False):
        raise ValueError(
            "bagua_net.algorithms: compiled autograd traces communication hooks, and an algorithm cannot be traced; "
            "set torch._dynamo.config.compiled_autograd = False, and use torch.compile without it"
        )
