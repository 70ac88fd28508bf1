# SPDX-License-Identifier: MIT
"""Optimizers that are not torch's, in the forms that third parties write, and networks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Written(torch.optim.Optimizer):  # type: ignore[misc]
    """The loop that all of them have; ``update`` is one parameter's."""

    def __init__(self, params: Any, lr: float = 1e-2, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(group, parameter, parameter.grad, self.state[parameter])
        return loss

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> None:
        raise NotImplementedError


class Lion(Written):
    """arXiv 2302.06675: the sign of an interpolated momentum."""

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> None:
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        parameter.mul_(1 - group["lr"] * group["decay"])
        parameter.add_(state["momentum"].lerp(gradient, 0.1).sign_(), alpha=-group["lr"])
        state["momentum"].lerp_(gradient, 0.01)


class CountedAdam(Written):
    """Adam, whose count of steps is a number."""

    def count(self) -> Any:
        return 0

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> None:
        if not state:
            state["step"] = self.count()
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        steps = float(state["step"])
        state["mean"].lerp_(gradient, 0.1)
        state["square"].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        scale = (state["square"] / (1 - 0.99**steps)).sqrt_().add_(1e-8)
        parameter.mul_(1 - group["lr"] * group["decay"])
        parameter.addcdiv_(state["mean"] / (1 - 0.9**steps), scale, value=-group["lr"])


class TensorAdam(CountedAdam):
    """Adam, whose count of steps is a tensor, as torch's."""

    def count(self) -> Any:
        return torch.tensor(0.0)


class NewState(Written):
    """Replaces its state at each step, and keeps something that belongs to no parameter."""

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> None:
        self.state["all"]["name"] = "kept"
        state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(parameter)) + gradient
        parameter.grad = None  # and drops gradients
        parameter.sub_(state["momentum"], alpha=1e-3 * group["lr"])


class Rows(Written):
    """Not elementwise: a value for each row."""

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
    ) -> None:
        state["row"] = torch.zeros(parameter.shape[0], 2)


ALL = (Lion, CountedAdam, TensorAdam, NewState)


class Network(nn.Sequential):  # type: ignore[misc]
    """Parameters of one, two and four dimensions, one of them in another memory format, one long, one a scalar."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 400), nn.PReLU(), nn.LayerNorm(400)),
            nn.Linear(400, 2),
        )
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.to(memory_format=torch.channels_last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * self.scale


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1, set_to_none: bool = True
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        images = torch.randn(4, 3, 8, 8, generator=generator)
        optimizer.zero_grad(set_to_none)
        model(images).square().sum().backward()
        optimizer.step()
