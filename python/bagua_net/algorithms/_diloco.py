# SPDX-License-Identifier: MIT
"""DiLoCo: the ranks train apart, and meet every so many steps.

After H steps of its own, each rank has moved from the anchor, the weights that all had when they met last. The mean
over the ranks of what each has moved by, the pseudo-gradient, is the gradient of an outer SGD with momentum, which
moves the anchor. Then all ranks have the anchor's weights. Only what they moved by travels, as codes: once in H steps.

With several fragments, each is a part of the elements with a round of its own, and the rounds begin one after the
other: as many bytes in all, in as many smaller parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ._algorithm import Algorithm, AlgorithmImpl
from ._codec import Codec
from ._compressed import compressed
from ._context import AlgorithmContext, ModelContext
from ._flat import Flat, Span
from ._sent import sent_by_all_reduce
from ._settings import check_whole
from ._sparse import MOST_BLOCK, Sparse, SparseAverage
from ._steps import StepHooks, is_whole
from ._weights import TrainsApart, all_have_state, check_float32, check_weight_averaging
from ._worker import awaited

#: Averages a vector over the ranks, in place, with its residual. The result is the bytes that this rank sends.
_Average = Callable[[torch.Tensor, "torch.Tensor | None"], int]


@dataclass(frozen=True)
class DiLoCo(Algorithm):
    """Each rank trains alone for ``steps`` steps of its optimizer. Then the mean of what the ranks have moved by moves
    the common weights: an outer SGD with the rate ``outer_lr`` and the momentum ``outer_momentum``, of Nesterov's kind
    if ``nesterov``.

    What a rank has moved by travels in codes of ``bits`` (8 or 4) in blocks of ``block`` elements. With
    ``error_feedback``, what its encoding loses is added to the next one. ``fragments`` cuts the elements in as many
    parts, one of which is averaged every ``steps / fragments`` steps.

    With ``density`` it is SparseLoCo: of each block only this part of the elements travels, those that have moved most,
    and ``bits`` may be 2. Blocks of 4096 and bits of 2 are usual then, and a smaller momentum, since error feedback
    brings late what momentum would bring again.

    The outer state is kept in float32 in the memory of the host: 8 bytes an element, and 4 for error feedback. The
    optimizers of the ranks stay apart, and so do buffers, such as BatchNorm's statistics.

    Raises:
        ValueError: a setting is out of its range.
    """

    steps: int = 30
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    fragments: int = 1
    bits: int = 8
    block: int = 512
    error_feedback: bool = True
    density: float | None = None

    name: ClassVar[str] = "diloco"
    averages = "weights"

    def __post_init__(self) -> None:
        check_whole(self.name, 1, steps=self.steps, fragments=self.fragments, block=self.block)
        if self.density is None:
            Codec(self.bits, self.block)  # says what is wrong with them
        else:
            _require(0 < self.density <= 1, "density", self.density, "more than 0, up to 1")
            _require(isinstance(self.bits, int) and self.bits in (2, 4, 8), "bits", self.bits, "2, 4 or 8")
            _require(self.block <= MOST_BLOCK, "block", self.block, f"1 to {MOST_BLOCK}")
        _require(self.fragments <= self.steps, "fragments", self.fragments, f"1 to {self.steps}, the steps")
        _require(self.outer_lr > 0, "outer_lr", self.outer_lr, "more than 0")
        _require(0 <= self.outer_momentum < 1, "outer_momentum", self.outer_momentum, "at least 0 and less than 1")

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        check_weight_averaging(context, self.name)
        check_float32(context, self.name, "the anchor")
        return {}

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _Rounds(self, context)

    def average(self, group: dist.ProcessGroup) -> _Average:
        """What averages vectors of float32 in the memory of the host, over this group."""
        if self.density is not None:
            return SparseAverage(group, Sparse(self.density, self.bits, self.block)).average
        return compressed(group, Codec(self.bits, self.block), torch.device("cpu")).average


def _require(holds: bool, setting: str, value: Any, possible: str) -> None:
    if not holds:
        raise ValueError(f"bagua_net.algorithms: diloco: {setting}={value!r} is not possible; give {possible}")


class _Rounds(TrainsApart):
    """With DistributedDataParallel. The training loop's thread reads and writes weights; the runner does the rest."""

    def __init__(self, how: DiLoCo, context: AlgorithmContext) -> None:
        super().__init__(context, how.name)
        self._how = how
        self._group = _group_on_host(context)
        self._average = how.average(self._group)
        self._flat = Flat(context.parameters)
        self._whole: Span = (0, self._flat.elements)
        self._due = _due(self._flat.elements, how.steps, how.fragments)
        self._anchor = torch.zeros(self._flat.elements, dtype=torch.float32, device="cpu")
        self._has_anchor = False  # it is that of a state, or of steps that were made
        self._begun = False  # the ranks have agreed on the anchor, since the attach or the last state
        self._momentum = torch.zeros_like(self._anchor)
        self._residual = torch.zeros_like(self._anchor) if how.error_feedback else None
        self._step = 0  # steps of the optimizer so far
        self._trained = [0] * len(context.parameters)  # each one's last step in which it required a gradient
        self._apart = False  # the ranks' weights may differ
        self._counted = {"elements": 0.0, "bytes": 0.0, "synchronizations": 0.0}
        self._hooks = StepHooks(context, how.name, self._before_step, self._stepped, self._rests)

    # ---- rounds ----

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Begins with the first step, when the weights of a checkpoint are loaded."""
        if self._begun or self._rests() or not is_whole(optimizer):
            return
        weights = self._flat.read(self._whole)
        self._run(partial(self._begin, weights))
        self._begun = self._has_anchor = True

    def _begin(self, weights: torch.Tensor) -> torch.Tensor:
        """Without a state, the anchor is the weights of rank 0."""
        if not all_have_state(self._has_anchor, self._group, torch.device("cpu")):
            dist.broadcast(weights, group=self._group, group_src=0)
            self._anchor.copy_(weights)
        return self._anchor

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """After a step of the optimizer, which may outlive the model."""
        if self._context.wrapper() is None or not is_whole(optimizer):
            return
        self._apart = True
        if self._paused:
            return
        self._step += 1
        for number, parameter in enumerate(self._context.parameters.values()):
            if parameter.requires_grad:
                self._trained[number] = self._step
        span = self._due.get(self._step % self._how.steps)
        if span is not None:
            self._synchronize(span)
            self._apart = self._how.fragments > 1

    def _synchronize(self, span: Span) -> None:
        """Moves the anchor, and all ranks to it."""
        anchor = self._flat.rounded(span, self._anchor[slice(*span)])  # what an optimizer began with
        moved = anchor.sub_(self._flat.read(span))
        self._run(partial(self._outer_step, span, moved))
        self._flat.write(span, self._anchor[slice(*span)])
        self._counted["elements"] += moved.numel()
        self._counted["synchronizations"] += 1

    def _outer_step(self, span: Span, moved: torch.Tensor) -> torch.Tensor:
        part = slice(*span)
        residual = None if self._residual is None else self._residual[part]
        self._counted["bytes"] += self._average(moved, residual)
        self._keep_frozen(span, moved)
        momentum = self._momentum[part].mul_(self._how.outer_momentum).add_(moved)
        step = moved.add_(momentum, alpha=self._how.outer_momentum) if self._how.nesterov else momentum
        return self._anchor[part].sub_(step, alpha=self._how.outer_lr)

    def _keep_frozen(self, span: Span, moved: torch.Tensor) -> None:
        """A parameter that was frozen since the ranks met last, on all of them, stays. Momentum would move it on."""
        trained = torch.tensor(self._trained, device="cpu")
        dist.all_reduce(trained, dist.ReduceOp.MAX, group=self._group)
        frozen = trained <= self._step - self._how.steps
        for within in self._flat.places(span, frozen.tolist()):
            moved[within] = 0
            for kept in (self._momentum, self._residual):
                if kept is not None:
                    kept[slice(*span)][within] = 0

    def _level(self) -> None:
        """The exact mean of the ranks' weights becomes the anchor, and the weights of all."""
        if not (self._apart or self._hooks.missed_one):
            return
        mean = self._flat.read(self._whole)
        self._run(partial(self._exact_mean, mean))
        self._anchor.copy_(mean)
        self._flat.write(self._whole, mean)
        self._has_anchor = True
        self._apart = self._hooks.missed_one = False

    def _exact_mean(self, x: torch.Tensor) -> torch.Tensor:
        size = self._context.size
        dist.all_reduce(x.div_(size), group=self._group)
        dist.broadcast(x, group=self._group, group_src=0)  # the same bits everywhere, however a backend adds
        self._counted["bytes"] += sent_by_all_reduce(x.nbytes, size)
        return x

    def _run(self, call: Callable[[], torch.Tensor]) -> None:
        """Raises RuntimeError: a rank is gone, or does not come. It says after which step."""
        try:
            awaited(self._context.runner.post(call))
        except RuntimeError as error:
            raise RuntimeError(
                f"bagua_net.algorithms: diloco: the ranks could not meet after step {self._step}: {_only_what(error)}"
            ) from error

    # ---- the rest ----

    def stats(self) -> dict[str, float]:
        return dict(self._counted)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "anchor": self._flat.by_name(self._anchor) if self._has_anchor else {},
            "momentum": self._flat.by_name(self._momentum),
            "step": self._step,
            "trained": dict(zip(self._context.parameters, self._trained, strict=True)),
            "apart": self._apart,
        }
        return state if self._residual is None else state | {"residual": self._flat.by_name(self._residual)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        anchor = self._flat.from_names(state["anchor"]) if state["anchor"] else None
        momentum = self._flat.from_names(state["momentum"])
        residual = self._flat.from_names(state["residual"]) if "residual" in state else None
        self._has_anchor, self._begun = anchor is not None, False
        if anchor is not None:
            self._anchor.copy_(anchor)
        self._momentum.copy_(momentum)
        if self._residual is not None:
            self._residual.copy_(residual) if residual is not None else self._residual.zero_()
        self._step, self._apart = state["step"], state["apart"]
        self._trained = [state["trained"][name] for name in self._context.parameters]

    def pause(self) -> None:
        """Levels the weights first."""
        self._level()
        self._paused = True
        self._dispatcher.set_target(None)

    def resume(self) -> None:
        """Levels the weights, which the ranks' own optimizers have moved differently in the pause."""
        if not self._paused:
            return
        self._level()
        self._paused = False
        self._dispatcher.set_target(self.reduce)

    def synchronize(self) -> None:
        self._level()

    def stop(self) -> None:
        self._hooks.remove()
        self._dispatcher.set_target(None)


def _group_on_host(context: AlgorithmContext) -> dist.ProcessGroup:
    from ..torch import ProcessGroupBaguaNet

    return context.own if isinstance(context.own, ProcessGroupBaguaNet) else context.groups.on_host(context.group)


def _only_what(error: RuntimeError) -> str:
    """Without what torch puts around the text of a callback's exception."""
    line = str(error).strip().splitlines()[0]
    return line.removeprefix("Got the following error when running the callback: ").removeprefix("RuntimeError: ")


def _due(elements: int, steps: int, fragments: int) -> dict[int, Span]:
    """The elements that are synchronized, by the step of the round: fragment p at p * steps / fragments."""
    share = -(-elements // fragments)
    spans = {number * steps // fragments: (number * share, (number + 1) * share) for number in range(fragments)}
    return {step: (first, min(last, elements)) for step, (first, last) in spans.items() if first < elements}
