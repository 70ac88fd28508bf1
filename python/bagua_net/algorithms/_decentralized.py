# SPDX-License-Identifier: MIT
"""Decentralized: weights are averaged beside forward and backward, over all ranks or with one peer a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from ._algorithm import Algorithm, AlgorithmImpl
from ._chunks import chunks
from ._context import AlgorithmContext, ModelContext
from ._dispatcher import ForwardPreHook
from ._messages import Exchange
from ._scratch import ScratchBuffers
from ._settings import check_whole
from ._weights import WeightAveraging, check_weight_averaging

_log = logging.getLogger("bagua_net.algorithms")

_PEERS = ("all", "shift_one")


@dataclass(frozen=True)
class Decentralized(Algorithm):
    """Averages weights instead of gradients: x⁺ = mean of the ranks' x, less this rank's step, computed at its own x.

    The average is on its way while forward and backward run. With ``peers="all"`` it is over all ranks; with
    ``"shift_one"`` it is half of this rank's weights and half of another one's, which is another rank in each step,
    and the number of ranks is even. ``interval``: average in every so many steps.
    """

    peers: Literal["all", "shift_one"] = "all"
    interval: int = 1

    name: ClassVar[str] = "decentralized"
    averages = "weights"

    def __post_init__(self) -> None:
        if self.peers not in _PEERS:
            raise ValueError(
                f'bagua_net.algorithms: {self.name}: peers={self.peers!r} is not possible; "all" and "shift_one" are'
            )
        check_whole(self.name, 1, interval=self.interval)

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        check_weight_averaging(context, self.name)
        if self.peers == "shift_one" and context.size % 2:
            raise ValueError(
                f"bagua_net.algorithms: attach: shift_one pairs the ranks, and there are {context.size}; use an even "
                'number of ranks, or peers="all"'
            )
        return {}

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _Decentralized(self, context)


def peer_of(rank: int, step: int, size: int) -> int:
    """The rank that this one averages with: a rank of the other half, the next one in each step. size is even."""
    half = size // 2
    return (step + rank) % half + half if rank < half else (rank - half - step) % half


class _Decentralized(WeightAveraging):
    def __init__(self, how: Decentralized, context: AlgorithmContext) -> None:
        super().__init__(context, how.name)
        self._how = how
        self._copy: torch.Tensor | None = None  # for a copy of the weights, unless the runner has it
        self._scratch = ScratchBuffers()  # the runner's
        self._average: torch.futures.Future[torch.Tensor] | None = None  # on its way, for the next step
        self._versions: list[int] = []  # of the parameters, when the average began
        self._in_step = False  # the average of this step is in the weights
        self._warned = False
        modules = context.module.modules()  # embeddings that scale their rows in forward do it again in the next one
        self._scaled = {each.weight for each in modules if getattr(each, "max_norm", None) is not None}
        model: Any = context.wrapper()
        self._hooks.append(model.register_forward_pre_hook(ForwardPreHook(self._before_forward)))

    def _before_forward(self, model: Any) -> None:
        if model.training and torch.is_grad_enabled() and not self._paused and not self._in_step:
            self._begin()

    def _begin(self) -> None:
        """Once in a step of the optimizer, whatever the number of forward passes."""
        if self._average is None and self._steps % self._how.interval == 0:
            call = self._mean if self._how.peers == "all" else partial(self._half, self._steps // self._how.interval)
            copy, self._copy = self._copy, None
            flat, self._versions = self._weights.copy(copy), self._weights.versions(but=self._scaled)
            self._average = self._context.runner.post(partial(call, flat))

    def _half(self, step: int, flat: torch.Tensor) -> torch.Tensor:
        other = self._scratch.get("other", flat.numel(), flat.dtype, flat.device)
        Exchange(flat, [other], [peer_of(self._context.rank, step, self._context.size)], self._context.own).wait()
        self._count(flat.nbytes)
        for own, others in chunks(flat, other):
            own.add_(others).div_(2)
        return flat

    def _on_gradients(self) -> None:
        if self._in_step:
            return
        self._begin()  # without a forward pass of this model, too: the ranks count steps
        average, self._average = self._average, None
        if average is not None:
            mean = self._awaited(average)
            self._warn_of_changes()
            self._weights.set(mean)
            self._copy = mean
        self._in_step = True

    def _warn_of_changes(self) -> None:
        """The average undoes what somebody has done to the weights meanwhile. They may know, and restore them."""
        if not self._warned and self._weights.versions(but=self._scaled) != self._versions:
            self._warned = True
            _log.warning(
                "decentralized: weights were changed between a step's first forward pass, when their average began, "
                "and optimizer.step(), where the average replaces them; change or load weights before that forward "
                "pass, or call comm.load_state_dict before model.load_state_dict"
            )

    def _on_step(self) -> None:
        self._in_step = False

    def _drop(self) -> None:
        """An average of weights that are others by now."""
        average, self._average = self._average, None
        self._in_step = False
        if average is not None:
            self._awaited(average)

    def _on_pause(self) -> None:
        self._drop()
        self._copy, self._scratch = None, ScratchBuffers()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._drop()
        super().load_state_dict(state)
