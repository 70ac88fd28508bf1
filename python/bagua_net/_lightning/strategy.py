# SPDX-License-Identifier: MIT
"""What makes a DDPStrategy one with an algorithm. ``lightning`` and ``pytorch_lightning`` have a DDPStrategy each, of
the same code: the classes that combine one with :class:`StrategyMixin` are in ``lightning_strategy.py`` and
``pytorch_lightning_strategy.py``.

Lightning's calls, in order: ``setup`` wraps the model and makes the optimizers; ``load_optimizer_state_dict`` gets the
checkpoint of a run that is resumed; ``teardown`` ends a run. Validation, test and prediction use no
DistributedDataParallel, except for the validation within a fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..algorithms import Algorithm, AlgorithmHandle, attach
from ..algorithms._checkpoint import gathered, of_this_rank
from ..algorithms._ddp import ddp_arguments, optimizer_for
from ..algorithms._registry import algorithm_of
from ..torch import NAME
from .arguments import check
from .preemption import Preemption
from .resume import resumed

#: Where a checkpoint has the algorithm's state.
KEY = "bagua_net"

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy as _Base
else:
    _Base = object


class StrategyMixin(_Base):  # type: ignore[misc]
    """Trains by DistributedDataParallel, with an algorithm of ``bagua_net.algorithms`` between the ranks.

    >>> Trainer(strategy=BaguaStrategy("bytegrad"))                         # doctest: +SKIP
    >>> Trainer(strategy=BaguaStrategy(ByteGrad(bits=4)))                   # doctest: +SKIP
    >>> Trainer(strategy="bagua")                                           # doctest: +SKIP

    Args:
        algorithm: settings such as ``ByteGrad(bits=4)``, or a name. The same on all ranks.
        state_in_checkpoints: checkpoints hold the algorithm's state of every rank: for ByteGrad with error feedback as
            many bytes as the model has in float32, times the ranks. Rank 0 gathers them. Without it a resumed run
            begins the algorithm anew, also where the checkpoint has a state.
        arguments: of ``DDPStrategy``, and through it of ``DistributedDataParallel``. On CPUs the process group's
            backend is ``bagua_net`` unless ``process_group_backend`` names another.

    Raises:
        TypeError: an argument that is neither's.
        ValueError: no such algorithm; a communication hook or model averaging of torch, which would be a second one.
    """

    strategy_name = "bagua"

    def __init__(
        self, algorithm: str | Algorithm = "bytegrad", *, state_in_checkpoints: bool = True, **arguments: Any
    ) -> None:
        self._algorithm = algorithm_of(algorithm)
        check(arguments, super().__init__)
        super().__init__(**ddp_arguments(self._algorithm, arguments))
        self._state_in_checkpoints = state_in_checkpoints
        self._bagua: AlgorithmHandle | None = None
        self._preemption = Preemption()
        self._group: dist.ProcessGroup | None = None  # of the last fit, and
        self._at_end: dict[str, Any] | None = None  # this rank's state at its end

    @property
    def bagua(self) -> AlgorithmHandle | None:
        """The algorithm at work, during a fit: ``trainer.strategy.bagua.stats()``."""
        return self._bagua

    # ---- a fit begins, and ends ----

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.ckpt_path is not None:
            self._at_end = None  # of other weights than those that are loaded now
        if isinstance(self.model, DistributedDataParallel):
            self._at_end = None
            self._bagua = self._attach(trainer)
            self._group = self._bagua._context.group

    def _attach(self, trainer: Any) -> AlgorithmHandle:
        if self._algorithm.averages == "momentum" and trainer.gradient_clip_val:
            raise ValueError(
                f"bagua_net.lightning: {self._algorithm.name} averages momentum in place of gradients, and "
                f"gradient_clip_val={trainer.gradient_clip_val} would clip that; leave it out"
            )
        optimizer = optimizer_for(self._algorithm, self.optimizers)
        return attach(self.model, optimizer, self._algorithm, scaler=getattr(self.precision_plugin, "scaler", None))

    def on_train_start(self) -> None:
        super().on_train_start()
        self._preemption.begin()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._preemption.meet()
        super().on_train_batch_start(batch, batch_idx)

    def on_validation_start(self) -> None:
        self._preemption.pause()
        super().on_validation_start()

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self._preemption.resume()

    def on_train_end(self) -> None:
        """Where weights are averaged, the ranks end with the same ones, which are tested and saved from here on."""
        self._preemption.end()
        if self._bagua is not None and self._algorithm.averages == "weights":
            self._bagua.pause()
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        """The other ranks may be anywhere: nothing that waits for them. The algorithm ends with its model."""
        self._bagua = None
        self._preemption.stop()
        super().on_exception(exception)

    def teardown(self) -> None:
        self._preemption.stop()
        ended, self._bagua = self._bagua, None
        if ended is not None:
            if self._state_in_checkpoints:
                self._at_end = of_this_rank(ended)
            ended.detach(synchronize=False)  # on_train_end did, where ranks are still together
        super().teardown()

    # ---- steps ----

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **arguments: Any) -> Any:
        """Backward and then the step: Lightning has the optimizer call backward, within its step, so that an
        algorithm's hooks on the step would come before backward."""
        return super().optimizer_step(optimizer, _called(closure), model, **arguments)

    # ---- checkpoints ----

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self._state_in_checkpoints and "optimizer_states" in checkpoint:  # else it is of the weights alone
            checkpoint = checkpoint | self._state()
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def _state(self) -> dict[str, Any]:
        """Of all ranks, on rank 0. All ranks save a checkpoint, except after an exception."""
        if self.lightning_module.trainer.interrupted:
            self._warn("the checkpoint of an interrupted run is without the algorithm's state: other ranks hold it")
            return {}
        own = self._at_end if self._bagua is None else of_this_rank(self._bagua)
        return {} if own is None else {KEY: gathered(self._group, own, self.root_device)}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        super().load_optimizer_state_dict(checkpoint)
        if self._bagua is None or KEY not in checkpoint or not self._state_in_checkpoints:
            return
        reason = resumed(self._bagua, checkpoint[KEY])
        if reason:
            self._warn(f"{reason}; the algorithm begins anew")

    def _warn(self, what: str) -> None:
        if self.is_global_zero:
            warnings.warn(f"bagua_net.lightning: {what}", stacklevel=2)

    # ---- where ----

    def _get_process_group_backend(self) -> str:
        if self._process_group_backend is None and self.root_device.type == "cpu":
            return NAME
        return str(super()._get_process_group_backend())


def _called(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Calls it now; the result is what the returned closure gives first. An optimizer such as LBFGS calls it again."""
    results = [closure()]
    return lambda: results.pop() if results else closure()


def register(registry: Any, strategy: type[StrategyMixin]) -> None:
    """Makes ``Trainer(strategy="bagua")`` work. The registry is Lightning's."""
    registry.register(
        strategy.strategy_name, strategy, description="DDP with an algorithm of bagua_net.algorithms", override=True
    )
