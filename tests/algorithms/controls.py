# SPDX-License-Identifier: MIT
"""Algorithms with one known defect each: a test that they pass can tell nothing.

Their defects are those that others have shipped, or that a change here could bring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from bagua_net.algorithms import (
    Algorithm,
    AsyncModelAverage,
    ByteGrad,
    Decentralized,
    DiLoCo,
    LowPrecisionDecentralized,
    QAdam,
    QAdamOptimizer,
)
from bagua_net.algorithms._algorithm import AlgorithmImpl
from bagua_net.algorithms._async import _Async
from bagua_net.algorithms._buckets import Layout
from bagua_net.algorithms._bytegrad import ByteGradImpl
from bagua_net.algorithms._codec import Codec
from bagua_net.algorithms._context import AlgorithmContext
from bagua_net.algorithms._decentralized import _Decentralized
from bagua_net.algorithms._diloco import _Rounds
from bagua_net.algorithms._dispatcher import dispatcher_of
from bagua_net.algorithms._flat import Span
from bagua_net.algorithms._low_precision import _Ring
from bagua_net.algorithms._qadam import QAdamImpl, _Local, _optimizer_of
from bagua_net.algorithms._qadam_optimizer import Group


class _OnBuckets(AlgorithmImpl):
    """Gathers the buckets of all ranks as they are, and lets a function make of them what this rank gets."""

    def __init__(self, context: AlgorithmContext, average: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
        self._context = context
        self._average = average
        self._dispatcher = dispatcher_of(context.wrapper())
        self._dispatcher.set_target(self.reduce)

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        return self._context.runner.post(partial(self._gathered, bucket.buffer()))

    def _gathered(self, buffer: torch.Tensor) -> torch.Tensor:
        of_all = [torch.empty_like(buffer) for _ in range(self._context.size)]
        dist.all_gather(of_all, buffer, group=self._context.own)
        return buffer.copy_(self._average(of_all))

    def stop(self) -> None:
        self._dispatcher.set_target(None)


def _mean(of_all: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(of_all).mean(0)


@dataclass(frozen=True)
class Alone(Algorithm):
    """Every rank keeps its own gradients."""

    name: ClassVar[str] = "alone"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _OnBuckets(context, lambda of_all: of_all[context.rank])


@dataclass(frozen=True)
class OneRange(Algorithm):
    """4 bits with one range for the whole bucket, and nothing that makes up for what they lose."""

    name: ClassVar[str] = "one range"
    bits: int = 4

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _OnBuckets(context, lambda of_all: self._rounded(_mean([self._rounded(each) for each in of_all])))

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        """To the nearest of the 2**bits values from the least element to the greatest."""
        step = (x.max() - x.min()) / (2**self.bits - 1)
        return x.min() + ((x - x.min()) / step).round() * step


@dataclass(frozen=True)
class OwnShare(Algorithm):
    """An owner keeps the mean of its share instead of what the others decode: the ranks get other bits."""

    name: ClassVar[str] = "own share"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _OnBuckets(context, partial(self._coded, context))

    def _coded(self, context: AlgorithmContext, of_all: list[torch.Tensor]) -> torch.Tensor:
        mean, codec = _mean(of_all), Codec()
        decoded = codec.decode(codec.encode(mean), torch.empty_like(mean))
        share = -(-mean.numel() // context.size)
        own = slice(context.rank * share, (context.rank + 1) * share)
        decoded[own] = mean[own]
        return decoded


@dataclass(frozen=True)
class Unclamped(Algorithm):
    """Upstream's codec: the least element of a symmetric range comes back as the greatest one."""

    name: ClassVar[str] = "unclamped"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _OnBuckets(context, lambda of_all: _mean([self._coded(each) for each in of_all]))

    def _coded(self, x: torch.Tensor) -> torch.Tensor:
        """s = 255 / (max - min + 1e-7); codes from rint(max s) - 255 upwards, in a byte, cut at their upper end only.
        From a range of 2 on, the addend of 1e-7 is lost in float32."""
        scale = 255.0 / (x.max() - x.min() + 1e-7)
        upper = (x.max() * scale).round()
        lower = upper - 255.0
        codes = (torch.minimum((x * scale).round(), upper) - lower).to(torch.int32) & 255
        return (codes + lower) / scale


@dataclass(frozen=True)
class ShortResiduals(ByteGrad):
    """Residuals are kept in bfloat16."""

    name: ClassVar[str] = "short residuals"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithShortResiduals(self.compression(), context)


class _WithShortResiduals(ByteGradImpl):
    def _average_compressed(self, buffer: torch.Tensor, layout: Layout) -> None:
        super()._average_compressed(buffer, layout)
        assert layout.flat is not None
        layout.flat.copy_(layout.flat.bfloat16())


@dataclass(frozen=True)
class LostGradient(QAdam):
    """Upstream's change of phase: the first averaged momentum is without the gradient."""

    name: ClassVar[str] = "lost gradient"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithLostGradient(self._compression(), context, _optimizer_of(context))


class _WithLostGradient(QAdamImpl):
    _lost = False

    def _average_momentum(self, local: _Local, buffer: torch.Tensor, layout: Layout) -> torch.Tensor:
        if not self._lost:  # the model has one bucket
            self._lost = True
            for parameter, gradient, _ in local:
                gradient.copy_(self._optimizer.state[parameter]["exp_avg"])
        return super()._average_momentum(local, buffer, layout)


class CorrectsFrozenVariance(QAdamOptimizer):
    """Upstream's: the bias correction of a variance that no longer changes goes on."""

    def _with_frozen_variance(self, group: Group, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            self.state[parameter]["variance_steps"] += 1
        super()._with_frozen_variance(group, parameters)


class FirstGroupsBetas(QAdamOptimizer):
    """Upstream's: those of the first group for all groups."""

    def forming(self, parameters: Any) -> dict[torch.Tensor, Group]:
        betas = self.param_groups[0]["betas"]
        return {each: group | {"betas": betas} for each, group in super().forming(parameters).items()}


class WithoutDecay(QAdamOptimizer):
    """Upstream's: no weight decay after the warm-up."""

    def _with_frozen_variance(self, group: Group, parameters: list[torch.Tensor]) -> None:
        super()._with_frozen_variance(group | {"weight_decay": 0.0}, parameters)


class MovingVariance(QAdamOptimizer):
    """After the warm-up the variance goes on, with averaged momentum in the place of gradients."""

    def _with_frozen_variance(self, group: Group, parameters: list[torch.Tensor]) -> None:
        super()._with_frozen_variance(group, parameters)
        for parameter in parameters:
            state = self.state[parameter]
            state["exp_avg_sq"].lerp_(state["exp_avg"].square(), 1 - group["betas"][1])


@dataclass(frozen=True)
class NoOuterStep(DiLoCo):
    """The ranks meet, and nothing moves the anchor."""

    name: ClassVar[str] = "no outer step"
    steps: int = 10

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithoutOuterStep(self, context)


class _WithoutOuterStep(_Rounds):
    def _outer_step(self, span: Span, moved: torch.Tensor) -> torch.Tensor:
        before = self._anchor.clone()
        super()._outer_step(span, moved)
        self._anchor.copy_(before)
        return self._anchor[slice(*span)]


@dataclass(frozen=True)
class NeverAverages(Decentralized):
    """Averages are made, and the weights stay as they are."""

    name: ClassVar[str] = "never averages"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithoutAverages(self, context)


class _WithoutAverages(_Decentralized):
    def _on_gradients(self) -> None:
        own = self._weights.copy()
        super()._on_gradients()
        self._weights.set(own)


@dataclass(frozen=True)
class LostMessage(Decentralized):
    """Rank 1 gets no message, and goes on with its own weights; its peer has its message."""

    name: ClassVar[str] = "lost message"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithLostMessage(self, context)


class _WithLostMessage(_Decentralized):
    def _half(self, step: int, flat: torch.Tensor) -> torch.Tensor:
        own = flat.clone()
        half = super()._half(step, flat)
        return own if self._context.rank == 1 else half


@dataclass(frozen=True)
class OldReplicas(LowPrecisionDecentralized):
    """The neighbours' replicas stay as they were at first."""

    name: ClassVar[str] = "old replicas"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithOldReplicas(self, context)


class _WithOldReplicas(_Ring):
    def _drawn(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self._left.clone(), self._right.clone()
        own = super()._drawn(x)
        self._left.copy_(left)
        self._right.copy_(right)
        return own


@dataclass(frozen=True)
class NoRounds(AsyncModelAverage):
    """There is no thread."""

    name: ClassVar[str] = "no rounds"

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _WithoutRounds(self, context)


class _WithoutRounds(_Async):
    def _start(self, *, stopped: bool = False) -> None:
        """Nothing."""


CONTROLS: dict[str, Callable[..., Algorithm]] = {
    each.name: each
    for each in (
        Alone,
        OneRange,
        OwnShare,
        Unclamped,
        ShortResiduals,
        LostGradient,
        NoOuterStep,
        NeverAverages,
        LostMessage,
        OldReplicas,
        NoRounds,
    )
}
