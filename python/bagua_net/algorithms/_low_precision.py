# SPDX-License-Identifier: MIT
"""Low-precision decentralized: ranks in a ring send their neighbours codes of how their weights have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ._algorithm import Algorithm, Running
from ._codec import Codec
from ._job import Job, Training
from ._messages import exchanged
from ._pieces import pieces
from ._settings import check_whole
from ._weights import Apart, all_have_state, check_apart, check_float32


@dataclass(frozen=True)
class LowPrecisionDecentralized(Algorithm):
    """Draws the weights to those of the two neighbours in a ring, by codes of 8 or 4 bits.

    Each rank keeps replicas of what its neighbours' weights are as codes tell: w of its own, l and r of theirs. After
    the optimizer has made x of w, z = x + (l + r - 5 w) / 3 is encoded; w, and the neighbours' replica of it, grow by
    what the code decodes to, and the weights are w from then on. So replicas are the same bits on both ranks. They
    take 12 bytes for each element. ``interval``: exchange in every so many steps.
    """

    bits: int = 8
    block: int = 512
    interval: int = 1

    name: ClassVar[str] = "low_precision_decentralized"
    averages = "weights"

    def __post_init__(self) -> None:
        Codec(self.bits, self.block)  # says what is wrong with them
        check_whole(self.name, 1, interval=self.interval)

    def check(self, training: Training) -> Mapping[str, Any]:
        check_apart(training, self.name)
        check_float32(training, self.name, "replicas")
        return {}

    def start(self, job: Job) -> Running:
        return _Ring(self, job)


class _Ring(Apart):
    def __init__(self, how: LowPrecisionDecentralized, job: Job) -> None:
        super().__init__(job, how.name)
        self._interval = how.interval
        self._codec = Codec(how.bits, how.block)
        left, right = (job.rank - 1) % job.size, (job.rank + 1) % job.size
        self._neighbours = [left, right] if job.size > 2 else [left] * (job.size - 1)
        self._own = self._left = self._right = torch.empty(0)
        self._has_replicas = False  # those of a state, or of steps that were made
        self._begun = False  # the ranks know that all have them, since the attach or the last state

    def _on_gradients(self) -> None:
        """Begins with the first step, when the weights of a checkpoint are loaded."""
        if self._begun:
            return
        weights = self._weights.copy()
        self._job.runner.post(lambda: self._begin(weights)).wait()
        self._begun = self._has_replicas = True

    def _begin(self, weights: torch.Tensor) -> torch.Tensor:
        """Without a state, replicas of the neighbours' weights as they are: those may differ from this rank's."""
        if not all_have_state(self._has_replicas, self._job.own, self._job.device):
            self._own = weights
            self._left, self._right = (each.clone() for each in self._from_neighbours(weights))
        return self._own

    def _from_neighbours(self, mine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Theirs of the left and of the right, which are one rank if there are two, and this one if it is alone."""
        theirs = exchanged(mine, self._neighbours, self._job.own) or [mine]
        self._count(len(self._neighbours) * mine.nbytes)
        return theirs[0], theirs[-1]

    def _on_step(self) -> None:
        if self._steps % self._interval:
            return
        x = self._weights.copy()
        self._weights.set(self._job.runner.post(lambda: self._drawn(x)).wait())

    def _drawn(self, x: torch.Tensor) -> torch.Tensor:
        for change, left, right, own in pieces(x, self._left, self._right, self._own):
            change.add_(left.add(right).sub_(own, alpha=5).div_(3))
        code = self._codec.encode(x)
        left, right = self._from_neighbours(code)
        # As the neighbours do it with this code: the same operations, for the same bits.
        self._codec.decode_add(code, self._own)
        self._codec.decode_add(left, self._left)
        self._codec.decode_add(right, self._right)
        return self._own

    def _on_pause(self) -> None:
        """The weights will be others when it ends."""
        self._own = self._left = self._right = torch.empty(0)
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
