# SPDX-License-Identifier: MIT
"""Distributed training that sends less: algorithms for DistributedDataParallel and FSDP2.

>>> from bagua_net.algorithms import ByteGrad, attach
>>> model = DistributedDataParallel(net)                        # doctest: +SKIP
>>> comm = attach(model, optimizer, "bytegrad")                 # doctest: +SKIP
>>> comm = attach(model, optimizer, ByteGrad(bits=4))           # doctest: +SKIP

:mod:`bagua_net.algorithms.ddp_comm_hooks` has ByteGrad as a plain communication hook.

They work on any backend of torch.distributed: ``bagua_net`` and gloo for CPU tensors, NCCL for CUDA ones. What each
sends, what it changes in the optimization and when to use it: docs/algorithms.md.
"""

from __future__ import annotations

from .. import _untraced
from ._algorithm import Algorithm
from ._allreduce import GradientAllReduce
from ._async import AsyncModelAverage
from ._attach import AlgorithmHandle, attach
from ._auto import Auto
from ._bytegrad import ByteGrad
from ._checkpoint import GatheredState
from ._decentralized import Decentralized
from ._diloco import DiLoCo
from ._low_precision import LowPrecisionDecentralized
from ._qadam import QAdam
from ._qadam_optimizer import QAdamOptimizer

_untraced.exclude(__name__)

__all__ = [
    "Algorithm",
    "AlgorithmHandle",
    "AsyncModelAverage",
    "Auto",
    "ByteGrad",
    "Decentralized",
    "DiLoCo",
    "GatheredState",
    "GradientAllReduce",
    "LowPrecisionDecentralized",
    "QAdam",
    "QAdamOptimizer",
    "attach",
]
