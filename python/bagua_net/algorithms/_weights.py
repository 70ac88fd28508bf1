# SPDX-License-Identifier: MIT
"""What algorithms that average weights have in common: gradients stay local, and the weights are one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from ._algorithm import AlgorithmImpl
from ._context import AlgorithmContext, ModelContext
from ._dispatcher import dispatcher_of, refuse_join
from ._sent import sent_by_all_reduce
from ._steps import StepHooks, is_whole
from ._worker import awaited

#: The attribute of DistributedDataParallel by which it sends buffers from rank 0 in every forward pass; the first that
#: this torch has, for the old name warns there.
_SENDS_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")
#: Optimizers of torch: one lets each rank step for a part of the parameters, the other averages them now and then.
_SEND_WEIGHTS = ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer")


class Weights:
    """The trained parameters as one flat vector (elements) of float32, or of float64 where a parameter is.

    Values are written through ``Tensor.data``: a change between forward and backward does not count as one for
    autograd, which would refuse the backward pass.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sizes = [parameter.numel() for parameter in self._parameters.values()]
        self.elements = sum(self._sizes)
        self.dtype = reduce(torch.promote_types, (each.dtype for each in self._parameters.values()), torch.float32)

    def copy(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """In a copy that was made before, or in a new tensor: new pages at each step cost more than what is copied."""
        if out is None:
            out = torch.empty(self.elements, dtype=self.dtype, device=next(iter(self._parameters.values())).device)
        for parameter, part in self._parts(out):
            part.copy_(parameter.data)
        return out

    def versions(self, but: Collection[nn.Parameter]) -> list[int]:
        """Of each parameter but those. A change by somebody else has another one, unless it is through ``data``."""
        return [each._version for each in self._parameters.values() if each not in but]

    def set(self, flat: torch.Tensor) -> None:
        for parameter, part in self._parts(flat):
            parameter.data.copy_(part)

    def add(self, flat: torch.Tensor) -> None:
        for parameter, part in self._parts(flat):
            parameter.data.add_(part.to(parameter.dtype))

    def _parts(self, flat: torch.Tensor) -> list[tuple[nn.Parameter, torch.Tensor]]:
        parts = zip(self._parameters.values(), flat.split(self._sizes), strict=True)
        return [(parameter, part.view_as(parameter)) for parameter, part in parts]

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """A copy of each parameter's part."""
        return {name: part.clone() for name, (_, part) in zip(self._parameters, self._parts(flat), strict=True)}

    def load(self, flat: torch.Tensor, named: Mapping[str, torch.Tensor]) -> None:
        """The opposite of :meth:`named`. Raises ValueError: it has other names or sizes, and nothing is loaded."""
        parts = {name: part for name, (_, part) in zip(self._parameters, self._parts(flat), strict=True)}
        for name, part in parts.items():
            if name not in named or named[name].numel() != part.numel():
                raise ValueError(
                    f"bagua_net.algorithms: load_state_dict: the state has {len(named)} parameters, and for {name} not "
                    f"the {part.numel()} elements that the model has; load the state of this model"
                )
        for name, part in parts.items():
            part.copy_(named[name].view_as(part))


class TrainsApart(AlgorithmImpl):
    """Ranks train with their own gradients."""

    #: Ranks wait for each other in their steps.
    meets_in_steps: ClassVar[bool] = True

    def __init__(self, context: AlgorithmContext, name: str) -> None:
        """name: the algorithm's."""
        self._context = context
        self._name = name
        self._paused = False
        self._dispatcher = dispatcher_of(context.wrapper())
        self._dispatcher.set_target(self.reduce)

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The rank's own gradients, as they are."""
        if self.meets_in_steps and bucket.index() == 0:
            refuse_join(self._context.wrapper(), self._name)
        self._context.refuse_unknown(bucket, self._name)
        buffer = bucket.buffer()
        devices = [buffer.device] if buffer.device.type == "cuda" else None  # DDP waits for its stream
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future

    def _rests(self) -> bool:
        """In a pause, or where the optimizer has outlived the model."""
        return self._paused or self._context.wrapper() is None

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if not self._rests() and self._context.is_trained_by(optimizer):
            raise RuntimeError(f"bagua_net.algorithms: {without_scaler(self._name)}")


class WeightAveraging(TrainsApart):
    """Subclasses exchange weights in the four methods that begin with ``_on``."""

    def __init__(self, context: AlgorithmContext, name: str) -> None:
        super().__init__(context, name)
        self._weights = Weights(context.parameters)
        self._counted = {"elements": 0.0, "bytes": 0.0, "exchanges": 0.0}
        self._steps = 0  # of the optimizer
        self._hooks: list[Any] = [StepHooks(context, name, self._before_step, self._after_step, self._rests)]

    # ---- for subclasses ----

    def _on_gradients(self) -> None:
        """The optimizer is about to change the weights."""

    def _on_closure(self) -> None:
        """The optimizer is about to compute gradients, within its step."""

    def _on_step(self) -> None:
        """The optimizer has changed the weights: ``self._steps`` times by now."""

    def _on_pause(self) -> None:
        """Ends what is under way. The weights are averaged next, and gradients from then on."""

    def _on_resume(self) -> None:
        """Gradients are local from now on."""

    # ---- hooks ----

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """args: the optimizer, and a closure if there is one: frameworks run forward and backward within it."""
        if self._rests() or not is_whole(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._on_gradients()
            return None
        return args[:1], {**kwargs, "closure": self._followed(closure)}

    def _followed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def followed() -> Any:
            self._on_closure()
            loss = closure()
            self._on_gradients()
            return loss

        return followed

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._rests() and is_whole(optimizer):
            self._steps += 1
            self._on_step()

    # ---- what all of them do ----

    def _count(self, sent: float) -> None:
        self._counted["elements"] += self._weights.elements
        self._counted["bytes"] += sent
        self._counted["exchanges"] += 1

    def _awaited(self, average: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        """The result of the runner. Raises RuntimeError: the ranks' weights could not be averaged."""
        try:
            return awaited(average)
        except RuntimeError as error:
            raise RuntimeError(
                f"bagua_net.algorithms: {self._name}: weights could not be averaged: {error}; all ranks take the same "
                "number of optimizer steps, and one whose data ends early, or whose GradScaler skips a step, does not"
            ) from error

    def _mean(self, flat: torch.Tensor) -> torch.Tensor:
        """In place, over all ranks. On the runner."""
        size = self._context.size
        dist.all_reduce(flat.div_(size), group=self._context.own)
        self._count(sent_by_all_reduce(flat.nbytes, size))
        return flat

    def stats(self) -> dict[str, float]:
        return dict(self._counted)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]

    def pause(self) -> None:
        if self._paused:
            return
        self._on_pause()
        self._paused = True
        self._dispatcher.set_target(None)
        self._set_mean()

    def _set_mean(self) -> None:
        flat = self._weights.copy()
        self._weights.set(self._awaited(self._context.runner.post(lambda: self._mean(flat))))

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._dispatcher.set_target(self.reduce)
            self._on_resume()

    def synchronize(self) -> None:
        if self._paused:  # each rank's momentum moves them apart
            self._set_mean()
        else:
            self.pause()
            self.resume()

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._dispatcher.set_target(None)


def check_weight_averaging(context: ModelContext, name: str) -> None:
    """Raises ValueError: this model, its scaler or its optimizer brings the ranks together, or holds one up; or the
    optimizer is not the only one."""
    model = context.wrapper()
    sends = getattr(model, next(each for each in _SENDS_BUFFERS if hasattr(model, each)))
    if sends and next(context.module.buffers(), None) is not None:  # without buffers it sends nothing
        raise ValueError(
            f"bagua_net.algorithms: attach: with {name} the ranks train apart, and this DistributedDataParallel sends "
            "buffers from rank 0 in every forward pass; wrap the model with broadcast_buffers=False"
        )
    if context.scaler is not None:
        raise ValueError(f"bagua_net.algorithms: attach: {without_scaler(name)}")
    if (kind := _kind_that_sends(context.optimizer)) is not None:
        raise ValueError(
            f"bagua_net.algorithms: attach: with {name} the ranks train apart, and {kind} sends weights between them; "
            "use the optimizer that it was made of"
        )
    context.refuse_left_out(f"which {name} averages at that optimizer's steps")


def _kind_that_sends(optimizer: torch.optim.Optimizer) -> str | None:
    """Which of torch's that do it is: by their names, since the module with them need not be loaded."""
    kinds = [each for each in type(optimizer).__mro__ if each.__module__.startswith("torch.distributed.optim.")]
    return next((each.__name__ for each in kinds if each.__name__ in _SEND_WEIGHTS), None)


def without_scaler(name: str) -> str:
    """Why the algorithm of this name works with none."""
    return (
        f"with a GradScaler, a rank could skip a step that the others take, and {name} would wait for it; train in "
        "bfloat16 without a scaler"
    )


def check_float32(context: ModelContext, name: str, keeps: str) -> None:
    """Raises ValueError: a parameter has more bits than what the algorithm keeps."""
    for parameter, each in context.parameters.items():
        if each.dtype == torch.float64:
            raise ValueError(
                f"bagua_net.algorithms: attach: {name} keeps {keeps} in float32, and the parameter {parameter} is "
                "float64; use model.float(), or decentralized"
            )


def all_have_state(has: bool, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all ranks of the group have loaded a state; all of them ask. Raises RuntimeError: only some have."""
    having = torch.tensor([int(has)], dtype=torch.int32, device=device)
    dist.all_reduce(having, group=group)
    number, size = int(having.item()), group.size()
    if 0 < number < size:
        raise RuntimeError(f"{number} of {size} ranks have loaded a state; load it on all, or on none")
    return number > 0
