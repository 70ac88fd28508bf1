# SPDX-License-Identifier: MIT
"""Models that have the parameters of known ones, and whose backward pass takes a fixed time and no processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]


def _vgg16() -> Iterator[Shape]:
    """138,357,544 parameters, three quarters of them in one layer."""
    channels = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        yield from ((width, channels, 3, 3), (width,))
        channels = width
    for outputs, inputs in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        yield from ((outputs, inputs), (outputs,))


def _bert_large() -> Iterator[Shape]:
    """335,141,888 parameters: embeddings, 24 layers, the pooler."""
    width = 1024
    norm = ((width,), (width,))
    yield from ((30522, width), (512, width), (2, width), *norm)
    for _ in range(24):
        for _ in range(4):
            yield from ((width, width), (width,))
        yield from norm
        yield from ((4 * width, width), (4 * width,), (width, 4 * width), (width,))
        yield from norm
    yield from ((width, width), (width,))


def _small() -> Iterator[Shape]:
    """For the tests of this benchmark."""
    for _ in range(4):
        yield from ((256, 256), (256,))


SHAPES: dict[str, Callable[[], Iterator[Shape]]] = {"VGG16": _vgg16, "BERT-large": _bert_large, "small": _small}


class _Layer(torch.autograd.Function):  # type: ignore[misc]
    """Passes a number through; backward takes its time and then has the parameter's gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor, seconds: float) -> Any:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.seconds > 0:
            time.sleep(ctx.seconds)
        return gradients[0], ctx.gradient, None, None


class Stub(nn.Module):  # type: ignore[misc]
    """All gradients are parts of one tensor of normally distributed values. A matrix takes an equal part of the time
    that backward takes, a vector none."""

    def __init__(self, name: str, backward_s: float) -> None:
        super().__init__()
        shapes = list(SHAPES[name]())
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(max(weight.numel() for weight in self.weights), generator=generator) * 1e-3
        self._gradients = [values[: weight.numel()].view_as(weight) for weight in self.weights]
        matrices = sum(len(shape) > 1 for shape in shapes)
        self._seconds = [backward_s / matrices if len(shape) > 1 else 0.0 for shape in shapes]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, gradient, seconds in zip(self.weights, self._gradients, self._seconds, strict=True):
            x = _Layer.apply(x, weight, gradient, seconds)
        return x
