# SPDX-License-Identifier: MIT
"""What an algorithm is to :func:`attach`: its settings, and the part that runs on one model.

Data flow with DistributedDataParallel: backward fills a bucket of gradients; DDP calls the dispatcher, its only hook
ever; the dispatcher passes the bucket to :meth:`AlgorithmImpl.reduce` of the algorithm in force; the future that this
returns carries the averaged bucket. Collectives of an algorithm run on its own group, in the order of the posts, on one
thread (``_worker.py``) or, for CUDA, on one stream: a hook that starts a second collective from a future's callback
would start it at another place in the order on each rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

if TYPE_CHECKING:
    from ._context import AlgorithmContext, ModelContext


class Algorithm(ABC):
    """The settings of an algorithm: a frozen dataclass, such as ``ByteGrad``. All ranks use equal ones, which
    :func:`attach` compares. The base class is for annotations; there is no interface for subclasses of your own."""

    #: As :func:`attach` and log lines name it.
    name: ClassVar[str]

    #: What the ranks average. With "momentum" one optimizer owns the gradients, and nobody may clip them. With
    #: "weights" the ranks train apart in between: DistributedDataParallel must not send buffers from rank 0, and a
    #: checkpoint needs the weights and the optimizer of every rank.
    averages: ClassVar[Literal["gradients", "momentum", "weights"]] = "gradients"

    def _settings(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) else {}

    def _adds_by_host(self) -> bool:
        """Whether it wants the groups of :class:`Nodes`, where several hosts have several ranks each."""
        return False

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        """Before :meth:`_start`, and without a message to any rank: what else all ranks must have in common, as plain
        values by what they are called in a message.

        Raises:
            ValueError: the model, or the optimizer, is nothing for this algorithm. All ranks learn about it at once: of
                one that raises later, in :meth:`_start`, they learn after their own, which may wait for it.
        """
        return {}

    @abstractmethod
    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        """The algorithm at work on the context's DistributedDataParallel. Every rank calls it, after all have passed
        :meth:`_check` and the settings were compared. Where it raises, it leaves no hook on the optimizer or the model
        but the dispatcher, whose target :func:`attach` resets."""

    def _start_sharded(self, context: AlgorithmContext, has_replicas: bool) -> AlgorithmImpl:
        """The same with fully_shard. The context's group is that of the shards or, if there are some, of replicas."""
        raise ValueError(f"bagua_net.algorithms: {self.name} works on DistributedDataParallel, not on fully_shard")


class AlgorithmImpl:
    """An algorithm at work on one model. The thread that runs backward calls :meth:`reduce`; the training loop's, the
    rest."""

    #: A collective beside the context's runner has failed: the group is not used again.
    failed: bool = False

    @contextlib.contextmanager
    def beside_runner(self) -> Iterator[None]:
        """Around collectives of the context's own group that are not on its runner."""
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The gradients of a ``torch.distributed.GradBucket``, averaged over the ranks, in its own buffer."""
        raise NotImplementedError

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """Before a step that an enabled GradScaler makes with any optimizer. Raises RuntimeError: the optimizer trains
        this model, and the algorithm goes wrong with a scaler, or with one that it does not know."""

    def stats(self) -> dict[str, float]:
        """Counters since :func:`attach`, of this rank: ``elements`` that it contributed, ``bytes`` that it sent."""
        return {}

    @property
    def chosen(self) -> str | None:
        """Which of several it goes on with; None: there are not several, or it still tries."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What training needs to go on as if it had not been interrupted. Tensors are by the parameter's name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave. The shapes and names were compared before."""

    def pause(self) -> None:
        """From now on, gradients are averaged exactly. All ranks call it at the same step."""

    def resume(self) -> None:
        """The opposite of :meth:`pause`."""

    def synchronize(self) -> None:
        """Makes the weights equal on all ranks, where the algorithm lets them differ."""

    def stop(self) -> None:
        """Ends it: no hook of its own remains on the model or the optimizer."""

    def abandon(self) -> None:
        """The same before the first step, and without the other ranks, of which one could not begin."""
        self.stop()
