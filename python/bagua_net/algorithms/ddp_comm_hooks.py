# SPDX-License-Identifier: MIT
"""ByteGrad as a communication hook, for programs and frameworks that register hooks themselves.

>>> from bagua_net.algorithms.ddp_comm_hooks import ByteGradState, bytegrad_hook
>>> model.register_comm_hook(ByteGradState(), bytegrad_hook)                            # doctest: +SKIP
>>> DDPStrategy(ddp_comm_state=ByteGradState(), ddp_comm_hook=bytegrad_hook)            # doctest: +SKIP

Gradients become the same bits as with ``attach(model, optimizer, "bytegrad")``. A hook sees gradients alone, and DDP
never gives it up: pauses, counters, residuals in checkpoints and the other algorithms need :func:`attach`.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from .. import _untraced
from ._bucket_averager import BucketAverager
from ._bytegrad import ByteGrad
from ._compressed import hosts_of
from ._context import runner_for
from ._grad_scaler import enabled, watch_scalers
from ._groups import Groups

__all__ = ["ByteGradState", "bytegrad_hook"]


class ByteGradState:
    """The state of :func:`bytegrad_hook`, for one model. All ranks use the same settings.

    It begins with the first bucket, so it may be made before the process group is. A copy, or what is loaded from a
    pickle, has the settings and begins anew, in the default group and without a scaler.

    Args:
        settings: None: ``ByteGrad()``.
        process_group: the model's; None: the default group.
        scaler: the ``torch.amp.GradScaler`` in use, whose scale residuals must follow.
        find_unused_parameters: as the model has it.
    """

    def __init__(
        self,
        settings: ByteGrad | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        scaler: Any = None,
        find_unused_parameters: bool = False,
    ) -> None:
        self._settings = settings or ByteGrad()
        self._process_group = process_group
        self._scaler = scaler
        self._find_unused_parameters = find_unused_parameters
        self._averager: BucketAverager | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process_group": None, "_scaler": None, "_averager": None}

    def _begin(self, device: torch.device) -> BucketAverager:
        """A group of its own: collectives of its thread would come between those of the training loop."""
        runner = runner_for(device, "bagua_net bytegrad_hook")
        groups = Groups()
        group = groups.like(self._process_group or dist.group.WORLD)
        averager = BucketAverager(
            self._settings.compression(),
            group,
            device,
            runner,
            hosts=hosts_of(group, device, groups),
            names={},
            scaler=enabled(self._scaler),
            takes_scaler="ByteGradState(scaler=scaler)",
            finds_unused=self._find_unused_parameters,
        )
        weakref.finalize(self, runner.close)
        watch_scalers(averager)
        return averager


def bytegrad_hook(state: ByteGradState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For ``DistributedDataParallel.register_comm_hook(state, bytegrad_hook)``."""
    if state._averager is None:
        state._averager = state._begin(bucket.buffer().device)
    return state._averager.reduce(bucket)


# DDP compares annotations with these types, and does not evaluate strings.
bytegrad_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}

_untraced.exclude(__name__)
