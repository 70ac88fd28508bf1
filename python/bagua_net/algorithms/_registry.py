# SPDX-License-Identifier: MIT
"""Algorithms by name."""

from __future__ import annotations

from collections.abc import Callable

from ._algorithm import Algorithm
from ._allreduce import GradientAllReduce
from ._async import AsyncModelAverage
from ._auto import Auto
from ._bytegrad import ByteGrad
from ._decentralized import Decentralized
from ._diloco import DiLoCo
from ._low_precision import LowPrecisionDecentralized
from ._qadam import QAdam

#: By the name that attach takes. Upstream's names are among them.
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "allreduce": GradientAllReduce,
    "gradient_allreduce": GradientAllReduce,
    "bytegrad": ByteGrad,
    "qadam": QAdam,
    "diloco": DiLoCo,
    "decentralized": Decentralized,
    "low_precision_decentralized": LowPrecisionDecentralized,
    "async": AsyncModelAverage,
    "auto": Auto,
}


def algorithm_of(given: str | Algorithm) -> Algorithm:
    """Raises ValueError: no algorithm has this name; TypeError: it is neither a name nor settings."""
    if isinstance(given, Algorithm):
        return given
    if not isinstance(given, str):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"
        raise TypeError(
            f"bagua_net.algorithms: an algorithm is a name or settings, such as ByteGrad(), and this is {what}"
        )
    if given not in ALGORITHMS:
        raise ValueError(f"bagua_net.algorithms: there is no algorithm {given!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[given]()
