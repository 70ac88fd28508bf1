# SPDX-License-Identifier: MIT
"""Less to send: Bagua's algorithms over torch's public hooks.

>>> from bagua_net.algorithms import ByteGrad, attach
>>> model = DistributedDataParallel(net)                        # doctest: +SKIP
>>> comm = attach(model, optimizer, "bytegrad")                 # doctest: +SKIP
>>> comm = attach(model, optimizer, ByteGrad(bits=4))           # doctest: +SKIP

They work on any backend of torch.distributed: ``bagua_net`` and gloo for CPU tensors, NCCL for CUDA ones. What each
sends, what it changes in the optimization and when to use it: docs/algorithms.md.
"""

from __future__ import annotations

from ._algorithm import Algorithm, Running
from ._allreduce import GradientAllReduce
from ._async import AsyncModelAverage
from ._attach import Attachment, attach
from ._auto import Auto
from ._bytegrad import ByteGrad
from ._checkpoint import StateOfAllRanks
from ._decentralized import Decentralized
from ._diloco import DiLoCo
from ._low_precision import LowPrecisionDecentralized
from ._qadam import QAdam
from ._qadam_optimizer import QAdamOptimizer
from ._registry import ALGORITHMS
from ._with_bagua import with_bagua

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AsyncModelAverage",
    "Attachment",
    "Auto",
    "ByteGrad",
    "Decentralized",
    "DiLoCo",
    "GradientAllReduce",
    "LowPrecisionDecentralized",
    "QAdam",
    "QAdamOptimizer",
    "Running",
    "StateOfAllRanks",
    "attach",
    "with_bagua",
]
