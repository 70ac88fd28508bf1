# SPDX-License-Identifier: MIT
"""auto: the fastest of the ways that leave the optimization as it is, found on the job itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ._algorithm import Algorithm, AlgorithmImpl
from ._allreduce import GradientAllReduce
from ._bytegrad import ByteGrad
from ._codec import Codec
from ._context import TAKES_SCALER, AlgorithmContext
from ._dispatcher import dispatcher_of
from ._grad_scaler import unknown_scaler
from ._probe import probe
from ._settings import check_whole
from ._trial import Trial

_log = logging.getLogger("bagua_net.algorithms")

#: What may be chosen. The first one is kept unless another saves more than this share of its step.
_CANDIDATES: dict[str, Algorithm] = {
    "allreduce": GradientAllReduce(),
    "bfloat16": GradientAllReduce(wire="bfloat16"),
    "bytegrad": ByteGrad(bits=8, error_feedback=True),
}
_HEAD_START = 0.05
#: A candidate that is predicted to be slower than the first one by this factor is not tried.
_HOPELESS = 1.5
#: DDP cuts its buckets anew after its first step, and a step after a change may still pay for it.
_IGNORED_STEPS = 2
#: … with a candidate that has its buffers from an earlier round.
_IGNORED_LATER = 1
#: DDP's advice for buckets of slow networks: fewer, larger messages. See ``bucket_cap_mb``.
_LARGE_BUCKET_MB = 100


@dataclass(frozen=True)
class Auto(Algorithm):
    """Tries exact all-reduce, all-reduce of bfloat16, and ByteGrad (8 bits, error feedback) for ``trial_steps`` steps
    each, and goes on with the fastest; with exact all-reduce unless another one saves a twentieth of the step. Where
    steps vary so much that the times overlap, it tries those in question again, up to three times.

    A step is timed from one backward pass to the next, on the slowest rank, so that what backward hides does not count.
    Candidates that the measured latency, bandwidth and codec speed rule out are not tried. One line in the log of
    ``bagua_net.algorithms`` says what was chosen and why, and what else might help: algorithms that change the
    optimization are recommended there, and never chosen.
    """

    trial_steps: int = 5

    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_whole(self.name, 1, trial_steps=self.trial_steps)

    def _adds_by_host(self) -> bool:
        return True

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _Trying(self, context)


class _Trying(AlgorithmImpl):
    """Backward's thread times the steps and, between two of them, agrees with the other ranks."""

    def __init__(self, settings: Auto, context: AlgorithmContext) -> None:
        self._settings = settings
        self._context = context
        self._all = {name: algorithm._start(context) for name, algorithm in _CANDIDATES.items()}
        self._costs = probe(context.own, context.device)
        self._counted: dict[str, float] = {}  # by candidates that were begun anew
        self._paused = False
        self._begin_trial()
        self._dispatcher = dispatcher_of(context.wrapper())
        self.resume()

    def _begin_trial(self) -> None:
        self._trial = Trial(_CANDIDATES, _HEAD_START)
        self._seconds: dict[str, float] = {}  # of a step, by candidate
        self._chosen = ""
        self._now = self._trial.now
        self._marks: list[float] = []  # when the steps with the present candidate began

    # ---- steps ----

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if not self._chosen and bucket.index() == 0:
            self._begin_step()
        return self._all[self._now].reduce(bucket)

    def _begin_step(self) -> None:
        if self._context.device.type == "cuda":  # its steps take the time, not their launch
            torch.cuda.synchronize(self._context.device)
        self._marks.append(time.perf_counter())
        ignored = _IGNORED_LATER if self._trial.tried_before else _IGNORED_STEPS
        if len(self._marks) <= ignored + self._settings.trial_steps:
            return
        times = [later - earlier for earlier, later in zip(self._marks, self._marks[1:], strict=False)]
        self._marks = [self._marks[-1]]
        self._end_turn(self._slowest(times[ignored:]))

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Each over the ranks. All earlier buckets are over, and this one is not posted: nothing else is under way."""
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self._context.device)
        with self.beside_runner():
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._context.own)
        return list(slowest.tolist())

    def _end_turn(self, times: list[float]) -> None:
        first = not self._seconds
        self._trial.add(times)
        self._seconds = self._trial.seconds()
        if first:
            for name in _CANDIDATES:
                if name not in self._seconds and not self._may_win(name):
                    self._trial.rule_out(name)
        if self._trial.now:
            self._now = self._trial.now
        else:
            self._choose()

    # ---- decisions: of figures that are equal on all ranks ----

    def _elements(self) -> int:
        return sum(parameter.numel() for parameter in self._context.parameters.values())

    def _predicted(self, name: str) -> float:
        """Seconds of the collectives of a step, if all gradients were one bucket."""
        costs, size, elements = self._costs, self._context.size, self._elements()
        if name == "bytegrad":
            return costs.compressed(elements, Codec(), size)
        return costs.ring(elements * (4 if name == "allreduce" else 2), size)

    def _may_win(self, name: str) -> bool:
        return self._predicted(name) < _HOPELESS * self._predicted("allreduce")

    def _choose(self) -> None:
        self._settle(self._trial.leader())
        if self._context.rank == 0:
            _log.info("%s", self._reasons())

    def _settle(self, chosen: str) -> None:
        """The others begin anew: without the residuals of the trial, which are as large as the gradients."""
        self._now = self._chosen = chosen
        for name, algorithm in _CANDIDATES.items():
            if name != chosen:
                self._counted = _sum(self._counted, self._all[name].stats())
                self._all[name] = algorithm._start(self._context)
        self._take_target()

    def _take_target(self) -> None:
        self._dispatcher.set_target(None if self._paused else self.reduce)

    def _reasons(self) -> str:
        elements = self._elements()
        tried = ", ".join(self._reason(name) for name in _CANDIDATES)
        line = (
            f"bagua_net: auto chooses {self._chosen}: a step takes {tried}. {elements / 1e6:.1f} million elements, "
            f"{self._context.size} ranks, latency {1e6 * self._costs.latency_s:.0f} us, "
            f"{self._costs.bytes_per_s / 1e9:.2f} GB/s sent, codec {4e-9 / self._costs.codec_s:.1f} GB/s."
        )
        return line + self._advice(elements)

    def _reason(self, name: str) -> str:
        if name in self._seconds:
            return f"{name} {1000 * self._seconds[name]:.1f} ms"
        own, exact = (1000 * self._predicted(each) for each in (name, "allreduce"))
        return f"{name} not tried (its averages would take {own:.1f} ms, exact ones {exact:.1f})"

    def _advice(self, elements: int) -> str:
        step, on_wire = self._seconds[self._chosen], self._predicted(self._chosen)
        advice = ""
        cap = getattr(self._context.wrapper(), "bucket_bytes_cap", 0)
        if self._chosen == "bytegrad" and cap < _LARGE_BUCKET_MB << 20 and elements * 4 > cap:
            advice += f" DistributedDataParallel(bucket_cap_mb={_LARGE_BUCKET_MB}) may save more."
        if on_wire > step / 2:
            advice += (
                f" The network still takes {1000 * on_wire:.0f} ms of it: ByteGrad(bits=4) would send half, DiLoCo a "
                "small part; they change the optimization, so they are not chosen for you."
            )
        return advice

    # ---- the rest ----

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        may_compress = self._chosen in ("", "bytegrad")
        if may_compress and scaler is not self._context.scaler and self._context.is_trained_by(optimizer):
            raise unknown_scaler("auto", TAKES_SCALER)

    def stats(self) -> dict[str, float]:
        """The sums over all candidates."""
        counted = self._counted
        for impl in self._all.values():
            counted = _sum(counted, impl.stats())
        return counted

    @property
    def chosen(self) -> str | None:
        return self._chosen or None

    def state_dict(self) -> dict[str, Any]:
        states = {name: impl.state_dict() for name, impl in self._all.items()}
        return {"chosen": self._chosen, "seconds": dict(self._seconds), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A choice stays; a trial that was under way begins again."""
        chosen = state["chosen"]
        for name in [chosen] if chosen else self._all:
            self._all[name].load_state_dict(state["states"][name])
        if chosen:
            self._seconds = dict(state["seconds"])
            self._settle(chosen)
        else:
            self._begin_trial()
            self._take_target()

    def pause(self) -> None:
        self._paused = True
        self._take_target()

    def resume(self) -> None:
        self._paused = False
        self._marks.clear()
        self._take_target()

    def stop(self) -> None:
        self._dispatcher.set_target(None)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in [*one, *other]}
