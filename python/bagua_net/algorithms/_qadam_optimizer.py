# SPDX-License-Identifier: MIT
"""The optimizer of QAdam: Adam, and after its warm-up Adam with a variance that no longer changes.

It owns the phase. In the second one an algorithm may average momentum in place of gradients (``_qadam.py``): it forms
each rank's momentum with :meth:`QAdamOptimizer.form`, and what it leaves in ``grad`` is the new momentum. Without an
algorithm, or while that pauses, the optimizer forms momentum of the gradient by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim.adam import adam

from ._chunks import CHUNK_ELEMENTS, chunks

_log = logging.getLogger("bagua_net.algorithms")

Group = dict[str, Any]


class QAdamOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Adam for ``warmup_steps`` steps, with the same results as ``torch.optim.Adam``. From then on the variance, with
    its bias correction, stays as it is: momentum is linear in the gradients, so that ranks may average compressed
    momentum.

    An element whose gradient was zero in the whole warm-up has no variance; it stays as it is from then on. A
    parameter's group may have its own lr, betas, eps and weight_decay.

    Raises:
        ValueError: a setting that means nothing; a parameter group with a warm-up of its own, or that comes after it.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self._begin()
        defaults = {
            "lr": lr,
            "warmup_steps": warmup_steps,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "steps": 0,
        }
        _check(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def _begin(self) -> None:
        #: Parameters whose ``grad`` is, or soon will be, their new momentum. Backward adds some while the worker's
        #: thread removes others: both change this set in place. To assign another one would undo the other's change;
        #: only this method does, when no pass is under way.
        self._momenta: set[torch.Tensor] = set()
        self._samples: dict[torch.Tensor, tuple[Any, torch.Tensor]] = {}  # an element of each: where, and its value

    @property
    def steps(self) -> int:
        """That were made."""
        return int(self.param_groups[0]["steps"])

    @property
    def is_warming_up(self) -> bool:
        """The next step is one of Adam."""
        return self.steps < int(self.param_groups[0]["warmup_steps"])

    def add_param_group(self, param_group: Group) -> None:
        if not self.param_groups:
            super().add_param_group(param_group)
        else:
            first = self.param_groups[0]
            if not self.is_warming_up:
                raise ValueError(
                    "bagua_net.algorithms: QAdamOptimizer: the warm-up is over, and new parameters have no variance; "
                    "add them before, or begin with a new optimizer"
                )
            own = param_group.get("warmup_steps", first["warmup_steps"])
            if own != first["warmup_steps"]:
                raise ValueError(
                    f"bagua_net.algorithms: QAdamOptimizer: a parameter group has warmup_steps={own}, another one "
                    f"{first['warmup_steps']}; all groups change phase at the same step"
                )
            super().add_param_group({**param_group, "steps": self.steps})
        _check(self.param_groups[-1])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises ValueError: it is another optimizer's."""
        if any("warmup_steps" not in group for group in state_dict["param_groups"]):
            raise ValueError(
                "bagua_net.algorithms: QAdamOptimizer: the state is of another optimizer; load one of QAdamOptimizer, "
                "or begin without it"
            )
        super().load_state_dict(dict(state_dict))
        self._begin()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._begin()
        super().zero_grad(set_to_none)

    # ---- what an algorithm calls, in backward ----

    def begin_backward(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether momentum is averaged in this backward pass of a model, rather than gradients.

        Raises:
            RuntimeError: the model's last pass has left momentum in ``grad``, and this one added gradients to it.
        """
        if not self._momenta.isdisjoint(parameters):
            raise RuntimeError(
                "bagua_net.algorithms: qadam: a second backward pass before optimizer.step() would add gradients to "
                "momentum; accumulate under model.no_sync(), or call optimizer.zero_grad() to drop the first"
            )
        return not self.is_warming_up

    def forming(self, parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, Group]:
        """The groups of those that this optimizer has. From now on, what their ``grad`` holds at the next step is
        momentum."""
        wanted = set(parameters)
        found = {each: group for group in self.param_groups for each in group["params"] if each in wanted}
        self._momenta.update(found)
        return found

    def not_forming(self, parameters: Iterable[torch.Tensor]) -> None:
        """After all, not of these: no rank has a gradient. A ``grad`` of theirs is zero, and momentum decays."""
        self._momenta.difference_update(parameters)

    def form(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Group) -> None:
        """Replaces this rank's gradient, in place, by its momentum divided by the root of the variance. A codec's error
        is then relative to a step, whatever the variances of neighbouring elements. Weight decay is not included."""
        state = self.state.get(parameter)
        if not state:
            gradient.zero_()  # no step takes it: either all ranks have no gradient, or the step raises
            return
        weight, correction = 1 - group["betas"][0], _correction(state, group)
        for new, old, variance in chunks(gradient, state["exp_avg"], state["exp_avg_sq"]):
            momentum = old.lerp(new.to(old.dtype), weight)
            new.copy_(_masked(momentum.div_(_root(variance, correction, group)), variance))

    def formed(self, parameter: torch.Tensor, averaged: torch.Tensor, group: Group) -> None:
        """Makes of the average of what :meth:`form` gave, in place, the new momentum."""
        state = self.state.get(parameter)
        if not state:
            return
        correction = _correction(state, group)
        for momentum, variance in chunks(averaged, state["exp_avg_sq"]):
            momentum.copy_(_root(variance, correction, group).mul_(momentum))

    def remember(self, parameter: torch.Tensor, momentum: torch.Tensor) -> None:
        """The greatest element of a parameter's new momentum, to see whether somebody changes it before the step."""
        if momentum.numel() and parameter in self._momenta:
            where = torch.unravel_index(_greatest(momentum), momentum.shape)
            self._samples[parameter] = (where, momentum[where].float().clone())

    # ---- a step ----

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a closure is called once.

        Raises:
            RuntimeError: somebody has changed the momentum that is in ``grad``; or a parameter has its first gradient
                after the warm-up.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._refuse_changed()
            self._step()
        return loss

    def _step(self) -> None:
        is_warming_up = self.is_warming_up
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if is_warming_up:
                self._adam(group, parameters)
            else:
                self._with_frozen_variance(group, parameters)
            group["steps"] += 1
        self._begin()
        if is_warming_up and not self.is_warming_up:
            self._tell_masked()

    def _refuse_changed(self) -> None:
        samples = {each: sample for each, sample in self._samples.items() if each.grad is not None}
        if not samples:
            return
        now = torch.stack([each.grad[where].float() for each, (where, _) in samples.items()])
        then = torch.stack([value for _, value in samples.values()])
        if not torch.equal(now.nan_to_num(), then.nan_to_num()):
            raise RuntimeError(
                "bagua_net.algorithms: qadam: momentum, which is in the place of gradients after the warm-up, was "
                "changed before optimizer.step(); leave out gradient clipping and GradScaler (bfloat16 needs none), "
                "and run only one backward pass in a step, or all but the last under no_sync()"
            )

    def _adam(self, group: Group, parameters: list[torch.Tensor]) -> None:
        states = [self.state[each] for each in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0, dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["variance_steps"] = 0
            state["variance_steps"] += 1
        beta1, beta2 = group["betas"]
        adam(
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _with_frozen_variance(self, group: Group, parameters: list[torch.Tensor]) -> None:
        beta1, _ = group["betas"]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                raise RuntimeError(
                    f"bagua_net.algorithms: qadam: a parameter of shape {tuple(parameter.shape)} has its first "
                    f"gradient after the warm-up of {group['warmup_steps']} steps, without a variance; use more"
                )
            state["step"] += 1
            rate = float(group["lr"]) / (1 - beta1 ** float(state["step"]))
            correction, is_momentum = _correction(state, group), parameter in self._momenta
            for weights, new, momentum, variance in chunks(
                parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"]
            ):
                if is_momentum:
                    momentum.copy_(new)
                else:
                    momentum.lerp_(new, 1 - beta1)
                if group["weight_decay"] != 0:
                    momentum.add_(weights, alpha=(1 - beta1) * group["weight_decay"])
                _masked(momentum, variance)  # compression may make something of nothing
                weights.addcdiv_(momentum, _root(variance, correction, group), value=-rate)

    def _tell_masked(self) -> None:
        variances = [state["exp_avg_sq"] for state in self.state.values() if state]
        masked = sum(int((variance == 0).sum()) for variance in variances)
        if masked:
            _log.warning(
                "qadam: %d of %d elements had no gradient in the warm-up of %d steps, and stay as they are from now "
                "on; where they should train, warm up longer (in a resumed run by param_groups' warmup_steps, after "
                "load_state_dict)",
                masked,
                sum(variance.numel() for variance in variances),
                self.steps,
            )


def _masked(momentum: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """0 for each element without a variance, whatever it was."""
    if variance.device.type == "cpu" and variance.numel() and variance.amin() > 0:
        return momentum  # masking takes the CPU longer than all else here
    return momentum.masked_fill_(variance == 0, 0)


def _greatest(x: torch.Tensor) -> torch.Tensor:
    """The number of the element whose magnitude is greatest."""
    parts = [part for (part,) in chunks(x)] if x.is_contiguous() else [x]
    # Searching for a place is slow on the CPU: only one chunk is searched.
    chunk = 0 if len(parts) == 1 else int(torch.stack([part.abs().max() for part in parts]).argmax())
    return parts[chunk].abs().argmax() + chunk * CHUNK_ELEMENTS


def _correction(state: Mapping[str, Any], group: Group) -> float:
    """Of the variance's bias. It ends with the steps of the variance: it would go on to shrink it."""
    _, beta2 = group["betas"]
    return float(1 - beta2 ** state["variance_steps"])


def _root(variance: torch.Tensor, correction: float, group: Group) -> torch.Tensor:
    """What a step divides momentum by, after the warm-up."""
    return variance.sqrt().div_(correction**0.5).add_(group["eps"])


def _check(group: Group) -> None:
    """Raises ValueError: a setting of a parameter group means nothing."""
    beta1, beta2 = group["betas"]
    wrong = {
        "lr": not group["lr"] >= 0,
        "warmup_steps": not (isinstance(group["warmup_steps"], int) and group["warmup_steps"] >= 1),
        "betas": not (0 <= beta1 < 1 and 0 <= beta2 < 1),
        "eps": not group["eps"] >= 0,
        "weight_decay": not group["weight_decay"] >= 0,
    }
    limits = {
        "warmup_steps": "a whole number from 1 on: the variance comes from the warm-up",
        "betas": "two numbers from 0 to below 1",
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(
                f"bagua_net.algorithms: QAdamOptimizer: {name}={group[name]!r}; use "
                f"{limits.get(name, 'a number from 0 on')}"
            )
