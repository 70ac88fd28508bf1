# SPDX-License-Identifier: MIT
"""What each rank sends of a step's gradients with an algorithm of ``bagua_net.algorithms``, without torch.

The bytes are those that ``AlgorithmHandle.stats()`` counts; settings are the algorithms' defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..._native import library
from ..workload import models
from ..workload.models import Shape
from ..workload.ops import OPS

#: Of a gradient: float32.
_GRADIENT_BYTES = 4
#: Of the mean magnitude of a block's signs: float32.
_MAGNITUDE_BYTES = 4

#: ``BNET_CODEC_…`` of bagua_net_host.h.
_U8, _U4 = 1, 2


@dataclass(frozen=True)
class Bucket:
    """What the ranks average at once."""

    elements: int
    exact: int
    """Those of parameters of one dimension, which compression leaves out."""


#: (bucket, ranks) → the bytes that a rank sends in each average, one after the other.
Sent = Callable[[Bucket, int], list[float]]


@dataclass(frozen=True)
class Algorithm:
    name: str
    """What ``attach`` takes."""
    sent: Sent
    steps: int = 1
    """Above 1: it averages all that these steps have changed at their end, and the ranks wait for it."""


def _ring(nbytes: float, nranks: int) -> float:
    """What a rank sends in an all-reduce of so many bytes."""
    return OPS["allreduce"].factor(nranks) * nbytes


def _floats(size: int) -> Sent:
    """Elements of so many bytes."""
    return lambda bucket, nranks: [_ring(bucket.elements * size, nranks)]


def _codes(nbytes: Callable[[int], int], block: int) -> Sent:
    """Codes, of which ``nbytes`` encode so many elements. Each rank owns a share of whole blocks; its code goes to the
    owner, and that of the mean to all."""

    def sent(bucket: Bucket, nranks: int) -> list[float]:
        share = math.ceil(bucket.elements / (nranks * block)) * block
        compressed = [2.0 * (nranks - 1) * nbytes(share)] if bucket.exact < bucket.elements else []
        exact = [_ring(bucket.exact * _GRADIENT_BYTES, nranks)] if bucket.exact else []
        return compressed + exact

    return sent


def _ranged(codec: int, block: int) -> Sent:
    """Codes of 8 or 4 bits, and a range for each block."""
    return _codes(lambda count: int(library.load_host().bnet_codec_bytes(codec, block, count)), block)


def _signs(block: int) -> Sent:
    """A bit for each element, and a magnitude for each block: ``bnet_signs_encode`` in bagua_net_host.h."""
    return _codes(lambda count: count // block * (block // 8 + _MAGNITUDE_BYTES), block)


ALGORITHMS = (
    Algorithm("GradientAllReduce()", _floats(_GRADIENT_BYTES)),
    Algorithm('GradientAllReduce(wire="bfloat16")', _floats(2)),
    Algorithm("ByteGrad()", _ranged(_U8, 512)),
    Algorithm("ByteGrad(bits=4)", _ranged(_U4, 128)),
    Algorithm("QAdam(bits=1)", _signs(512)),
    Algorithm("DiLoCo()", _ranged(_U8, 512), steps=30),
)


def buckets(shapes: Sequence[Shape]) -> list[Bucket]:
    """Those of DistributedDataParallel, for gradients of float32."""
    counts = [math.prod(shape) for shape in shapes]
    return [
        Bucket(sum(counts[place] for place in bucket), sum(counts[place] for place in bucket if len(shapes[place]) < 2))
        for bucket in models.assigned(counts, _GRADIENT_BYTES)
    ]
