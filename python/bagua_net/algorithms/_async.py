# SPDX-License-Identifier: MIT
"""Averages of weights on a thread beside training, which waits for no other rank.

In each round, the thread copies the weights, the ranks tell each other whether they continue, and the thread averages
the copy over the ranks while training changes the weights. Then it adds to the weights the difference between average
and copy. So updates made in between are kept, and only the optimizers change the sum of the weights over the ranks.

What can fail on one rank alone happens between two messages, so that the others learn of it in the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist

from ._algorithm import Algorithm, AlgorithmImpl
from ._context import AlgorithmContext, ModelContext
from ._dispatcher import ForwardPreHook, refuse_join
from ._settings import check_whole
from ._weights import WeightAveraging, check_weight_averaging
from ._worker import PATIENCE_S

_log = logging.getLogger("bagua_net.algorithms")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AsyncModelAverage(Algorithm):
    """Averages weights every ``interval_ms`` milliseconds, on a thread and a group of its own. Training goes on.

    Gradients are averaged exactly in the first ``warmup_steps`` steps, and not at all later on.
    """

    interval_ms: int = 500
    warmup_steps: int = 0

    name: ClassVar[str] = "async"
    averages = "weights"

    def __post_init__(self) -> None:
        check_whole(self.name, 0, interval_ms=self.interval_ms, warmup_steps=self.warmup_steps)

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        check_weight_averaging(context, self.name)
        if getattr(context.wrapper(), "find_unused_parameters", False):
            raise ValueError(
                "bagua_net.algorithms: attach: with find_unused_parameters=True, DistributedDataParallel waits for all "
                "ranks in each backward pass, and async is to wait for none; leave it out, or use decentralized"
            )
        return {}

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return _Async(self, context)


class _Status(IntEnum):
    """What a rank says to the others, before each round."""

    GOES_ON = 0
    STOPS = 1
    HAS_FAILED = 2
    IS_DROPPED = 3  # its model or its process ended without pause() or detach()


class _Async(WeightAveraging):
    meets_in_steps = False

    def __init__(self, how: AsyncModelAverage, context: AlgorithmContext) -> None:
        self._turns = _Turns(context.device)
        super().__init__(context, how.name)
        self._how = how
        self._adds = True  # changes that a round has found
        self._rounds: _Rounds | None = None
        model: Any = context.wrapper()
        self._hooks.append(model.register_forward_pre_hook(ForwardPreHook(lambda _: self._turns.end())))
        self._at_end = weakref.finalize(model, self._on_end)
        self._at_end.atexit = False  # maybe an error ends this process: the others' next round fails
        self._choose_target()

    @property
    def _warms_up(self) -> bool:
        return self._steps < self._how.warmup_steps

    def _choose_target(self) -> None:
        self._dispatcher.set_target(None if self._paused else self._warmed if self._warms_up else self.reduce)

    def _warmed(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """As by DDP. Under Join, a rank without inputs would stay in the warm-up that the others leave."""
        if bucket.index() == 0:
            refuse_join(self._context.wrapper(), "async with warmup_steps")
        return self._dispatcher.plain(bucket)

    # ---- the training loop's thread ----

    def _on_closure(self) -> None:
        """Forward and backward are outside of the turn: an exception there would leave it taken."""
        self._turns.end()

    def _on_gradients(self) -> None:
        if self._rounds is not None:
            self._rounds.tell()
        elif not self._warms_up:
            self._start()
        self._turns.begin()

    def _start(self, *, stopped: bool = False) -> None:
        """With the first step, when the weights of a checkpoint are loaded."""
        self._adds = True
        self._rounds = _Rounds(self, self._context.device, self._how.interval_ms / 1e3)
        if stopped:
            self._rounds.stop()
        self._turns.begin()  # on a device, the first round follows what this stream has to do
        self._turns.end()
        try:
            self._rounds.start()
        except RuntimeError:  # no thread can start: none is to be ended
            self._rounds = None
            raise

    def _on_step(self) -> None:
        self._turns.end()
        self._choose_target()

    def _on_pause(self) -> None:
        self._end_rounds()

    def _on_resume(self) -> None:
        self._choose_target()

    def _end_rounds(self) -> None:
        """The last round is one of all ranks. Here there may have been none, as in an epoch without a step."""
        self._turns.end()
        if self._paused:
            return
        if self._rounds is None and not self._warms_up:
            self._start(stopped=True)
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.stop()
            rounds.join()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ends the rounds, of which the last one adds nothing more: its change is of other weights."""
        self._adds = False
        self._end_rounds()  # also where this rank has made no step yet, and others have
        super().load_state_dict(state)
        self._choose_target()

    def stop(self) -> None:
        self._at_end.detach()
        self._end_rounds()
        super().stop()

    def abandon(self) -> None:
        self._at_end.detach()
        super().stop()

    def _on_end(self) -> None:
        """The model is gone, perhaps after a step that raised: its turn would hold up the thread for ever."""
        self._turns.end()
        if self._rounds is not None:
            self._rounds.drop()

    # ---- the thread of the rounds ----

    def copied(self, copy: torch.Tensor | None, change: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of the weights, and a tensor for their change: those of the round before, if there are any."""
        with self._turns:
            copy = self._weights.copy(copy)
        return copy, torch.empty_like(copy) if change is None else change

    def statuses(self, own: _Status) -> list[_Status]:
        """By rank."""
        told = torch.zeros(self._context.size, dtype=torch.float32, device=self._context.device)
        told[self._context.rank] = own
        dist.all_reduce(told, group=self._context.own)
        return [_Status(int(each)) for each in told.tolist()]

    def change(self, copy: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """What the mean of all ranks' copies differs from this rank's."""
        return self._mean(out.copy_(copy)).sub_(copy)

    def add(self, change: torch.Tensor) -> None:
        with self._turns:
            if self._adds:
                self._weights.add(change)

    def global_ranks(self) -> list[int]:
        return list(dist.get_process_group_ranks(self._context.group))

    def group_is_spent(self) -> None:
        """Not for another algorithm: a collective has failed, or a rank may never give it back."""
        self.failed = True


class _Rounds(threading.Thread):
    """One round after the other, until one of the ranks stops or fails: all stop in that round.

    It does without the context's runner, which is closed when the model is dropped: the others wait for the last round.
    """

    def __init__(self, of: _Async, device: torch.device, interval: float) -> None:
        super().__init__(name="bagua_net async rounds", daemon=True)
        self._of = of
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._interval = interval  # seconds
        self._stopped = False
        self._dropped = False  # drop() sets it before _stopped
        #: Ends the wait between two rounds. A finalizer that stops them may run on this very thread, in that wait, when
        #: it would hold the lock of a threading.Event.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._last: list[_Status] = []  # of all ranks, once there are no more rounds
        self._warned = False

    def stop(self) -> None:
        self._stopped = True
        self._stops.put(None)

    def drop(self) -> None:
        """Stops since the model or the process is gone, perhaps by an error."""
        self._dropped = True
        self.stop()

    def start(self) -> None:
        _running.add(self)
        try:
            super().start()
        except RuntimeError:  # no thread can start
            _running.discard(self)
            raise

    # ---- the training loop's thread ----

    def tell(self) -> None:
        """That the weights are no longer averaged, where they are not: this rank goes on to train.

        Raises:
            RuntimeError: since this rank's thread has failed, or another one's, or a model is gone.
        """
        if self._failure is not None:
            raise RuntimeError(
                f"bagua_net.algorithms: averaging weights beside training has failed: {self._failure}"
            ) from self._failure
        failed = self._ranks_that_said(_Status.HAS_FAILED)
        if failed:
            raise RuntimeError(
                f"bagua_net.algorithms: averaging weights beside training has failed on {failed}, whose own error says "
                "why; no rank averages any more"
            )
        dropped = self._ranks_that_said(_Status.IS_DROPPED)
        if dropped:
            raise RuntimeError(
                f"bagua_net.algorithms: averaging weights beside training has ended: {dropped} ended, or dropped the "
                "model, without pause() or detach(); an error there says why, or end each run with comm.detach()"
            )
        stopped = self._ranks_that_said(_Status.STOPS)
        if stopped and not self._warned:
            self._warned = True
            _log.warning(
                "async: %s stopped averaging weights, by pause() or detach(), and no rank averages any more; this one "
                "trains alone until all have called pause() and resume()",
                stopped,
            )

    def _ranks_that_said(self, status: _Status) -> str:
        ranks = [rank for rank, said in zip(self._of.global_ranks(), self._last, strict=False) if said is status]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else ""

    # ---- this thread ----

    def run(self) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                self._average()
        except BaseException as error:  # whatever it is, it belongs to the training loop
            self._failure = error
            self._of.group_is_spent()
        finally:
            _running.discard(self)

    def _average(self) -> None:
        copied = self._alone(partial(self._of.copied, None, None))
        while True:
            statuses = self._of.statuses(self._status())
            if copied is None or any(statuses):
                self._last = statuses
                if _Status.IS_DROPPED in statuses:
                    self._of.group_is_spent()
                return
            self._alone(partial(self._of.add, self._of.change(*copied)))
            if self._failure is None:
                self._pause()
            copied = self._alone(partial(self._of.copied, *copied))

    def _pause(self) -> None:
        """For the interval, or until the rounds are stopped."""
        with contextlib.suppress(queue.Empty):
            self._stops.get(timeout=self._interval)

    def _alone(self, call: Callable[[], _Result]) -> _Result | None:
        """Something that no other rank takes part in. None: it has failed, now or before."""
        if self._failure is None:
            try:
                return call()
            except BaseException as error:  # as in run
                self._failure = error
        return None

    def _status(self) -> _Status:
        if self._failure is not None:
            return _Status.HAS_FAILED
        if self._stopped:
            return _Status.IS_DROPPED if self._dropped else _Status.STOPS
        return _Status.GOES_ON


#: Those of all models.
_running: set[_Rounds] = set()


@atexit.register
def _end_all() -> None:
    """As the workers end. Ranks that go on learn that this one is gone, if a round of theirs comes in time."""
    running = list(_running)
    for rounds in running:
        rounds.drop()
    for rounds in running:
        if rounds.is_alive():  # another thread may be about to start it
            rounds.join(PATIENCE_S)


class _Turns:
    """Who changes the weights: the optimizer, from :meth:`begin` to :meth:`end`, or the thread, as a context.

    On a device, each turn's work also waits for that of the turn before, which may be on another stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._taken = False  # by the training loop
        self._before: Any = None  # the event of the last turn's end

    def begin(self) -> None:
        if not self._taken:
            self.__enter__()
            self._taken = True

    def end(self) -> None:
        """Nothing where there is no turn to end. A step that raised ends with the next forward pass at the latest."""
        if self._taken:
            self._taken = False
            self.__exit__()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._before is not None:
            torch.cuda.current_stream(self._device).wait_event(self._before)

    def __exit__(self, *_: Any) -> None:
        if self._device.type == "cuda":
            self._before = torch.cuda.current_stream(self._device).record_event()
        self._lock.release()
