# SPDX-License-Identifier: MIT
"""Low-precision decentralized: ranks in a ring send their neighbours codes of how their weights have changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from ._algorithm import Algorithm, AlgorithmImpl
from ._chunks import chunks
from ._codec import Codec
from ._context import AlgorithmContext, ModelContext
from ._messages import Exchange
from ._scratch import ScratchBuffers
from ._settings import check_whole
from ._weights import WeightAveraging, all_have_state, check_float32, check_weight_averaging

#: Elements of a chunk, about, whose codes are a message, and chunks whose codes may be on their way: with 8 bits 32 MB,
#: more than a line of 20 ms and 10 Gbit/s holds.
_CHUNK, _UNDER_WAY = 1 << 23, 4


@dataclass(frozen=True)
class LowPrecisionDecentralized(Algorithm):
    """Draws the weights to those of the two neighbours in a ring, by codes of 8 or 4 bits.

    Each rank keeps replicas of what its neighbours' weights are as codes tell: w of its own, l and r of theirs. After
    the optimizer has made x of w, z = x + (l + r - 5 w) / 3 is encoded; w, and the neighbours' replica of it, grow by
    what the code decodes to, and the weights are w from then on. So replicas are the same bits on both ranks. They
    take 12 bytes for each element, and a copy of the weights 4. ``interval``: exchange in every so many steps.
    """

    bits: int = 8
    block: int = 512
    interval: int = 1

    name: ClassVar[str] = "low_precision_decentralized"
    averages = "weights"

    def __post_init__(self) -> None:
        Codec(self.bits, self.block)  # says what is wrong with them
        check_whole(self.name, 1, interval=self.interval)

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        check_weight_averaging(context, self.name)
        check_float32(context, self.name, "replicas")
        return {}

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _Ring(self, context)


class _Ring(WeightAveraging):
    def __init__(self, how: LowPrecisionDecentralized, context: AlgorithmContext) -> None:
        super().__init__(context, how.name)
        self._interval = how.interval
        self._codec = Codec(how.bits, how.block)
        self._chunk = _CHUNK // how.block * how.block
        self._copy: torch.Tensor | None = None  # for a copy of the weights, unless the runner has it
        self._scratch = ScratchBuffers()  # the runner's
        left, right = (context.rank - 1) % context.size, (context.rank + 1) % context.size
        self._neighbours = [left, right] if context.size > 2 else [left] * (context.size - 1)
        self._own = self._left = self._right = torch.empty(0)
        self._has_replicas = False  # those of a state, or of steps that were made
        self._begun = False  # the ranks know that all have them, since the attach or the last state

    def _on_gradients(self) -> None:
        """Begins with the first step, when the weights of a checkpoint are loaded."""
        if self._begun:
            return
        weights = self._weights.copy()
        self._awaited(self._context.runner.post(lambda: self._begin(weights)))
        self._begun = self._has_replicas = True

    def _begin(self, weights: torch.Tensor) -> torch.Tensor:
        """Without a state, replicas of the neighbours' weights as they are: those may differ from this rank's."""
        if not all_have_state(self._has_replicas, self._context.own, self._context.device):
            theirs = [torch.empty_like(weights) for _ in self._neighbours]
            Exchange(weights, theirs, self._neighbours, self._context.own).wait()
            self._count(len(theirs) * weights.nbytes)
            self._own, (self._left, right) = weights, _left_and_right(theirs or [weights.clone()])
            self._right = right.clone() if right is self._left else right
        return self._own

    def _on_step(self) -> None:
        if self._steps % self._interval:
            return
        copy, self._copy = self._copy, None
        x = self._weights.copy(copy)
        self._has_replicas = False  # should this fail, some chunks of them will have grown
        self._weights.set(self._awaited(self._context.runner.post(partial(self._drawn, x))))
        self._copy, self._has_replicas = x, True

    def _drawn(self, x: torch.Tensor) -> torch.Tensor:
        """In chunks: a chunk is encoded while the codes of those before it are on their way."""
        under_way: deque[_Chunk] = deque()
        for number, parts in enumerate(self._chunks(x)):
            if len(under_way) == _UNDER_WAY:
                self._end(under_way.popleft())
            under_way.append(self._begin_chunk(number % _UNDER_WAY, *parts))
        while under_way:
            self._end(under_way.popleft())
        self._count(len(self._neighbours) * self._codec.nbytes(x.numel()))
        return self._own

    def _chunks(self, x: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Of x and the replicas, in the order of own, left and right. A chunk is whole blocks."""
        vectors = (x, self._own, self._left, self._right)
        return zip(*(each.split(self._chunk) for each in vectors), strict=True)

    def _begin_chunk(self, place: int, x: torch.Tensor, *replicas: torch.Tensor) -> _Chunk:
        for change, own, left, right in chunks(x, *replicas):
            change.add_(left.add(right).sub_(own, alpha=5).div_(3))
        mine, *theirs = self._codes(place, x.numel())
        self._codec.encode(x, mine)
        exchange = Exchange(mine, theirs, self._neighbours, self._context.own)
        return _Chunk(exchange, replicas, (mine, *_left_and_right(theirs or [mine])))

    def _codes(self, place: int, count: int) -> list[torch.Tensor]:
        """Buffers for those of a chunk: this rank's, and each neighbour's."""
        each, whole = (self._codec.nbytes(elements) for elements in (self._chunk, self._weights.elements))
        here = slice(place * each, place * each + self._codec.nbytes(count))
        names, most = ("own", *map(str, self._neighbours)), min(_UNDER_WAY * each, whole)
        return [self._scratch.get(name, most, torch.uint8, self._context.device)[here] for name in names]

    def _end(self, chunk: _Chunk) -> None:
        chunk.exchange.wait()
        for replica, code in zip(chunk.replicas, chunk.codes, strict=True):  # by the same operations as the neighbours
            self._codec.decode_add(code, replica)

    def _on_pause(self) -> None:
        """The weights will be others when it ends."""
        self._own = self._left = self._right = torch.empty(0)
        self._copy, self._scratch = None, ScratchBuffers()
        self._has_replicas = self._begun = False

    def _replicas(self) -> dict[str, torch.Tensor]:
        return {"own": self._own, "left": self._left, "right": self._right} if self._has_replicas else {}

    def state_dict(self) -> dict[str, Any]:
        """Before the first step, and in a pause, without replicas."""
        return {**super().state_dict(), **{name: self._weights.named(each) for name, each in self._replicas().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        loaded = {name: self._weights.copy() for name in ("own", "left", "right") if name in state}
        for name, replica in loaded.items():
            self._weights.load(replica, state[name])
        self._begun, self._has_replicas = False, bool(loaded)
        if loaded:
            self._own, self._left, self._right = loaded.values()
        super().load_state_dict(state)


@dataclass(frozen=True)
class _Chunk:
    """Codes on their way, of a part of the weights."""

    exchange: Exchange
    replicas: Sequence[torch.Tensor]
    """Own, left and right."""
    codes: Sequence[torch.Tensor]
    """What each of the replicas grows by."""


def _left_and_right(theirs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the left and of the right neighbour, which is one rank if there are two, and this one if it is alone."""
    return theirs[0], theirs[-1]
