# SPDX-License-Identifier: MIT
"""What a training step would take, by calculation: nothing is measured here.

An average among n ranks takes 2 (n - 1) latency + sent / rate, where sent is what each rank sends of it. For a ring,
which averages S bytes, that is 2 (n - 1) (latency + S / (n rate)): a reduce-scatter and an all-gather of n - 1 steps
each, as in R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), without their term for arithmetic. Where codes are sent, each rank has n - 1 messages twice as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..workload.models import Shape
from . import sent
from .link import Link

#: Of the computation of a step: backward computes about twice what forward does (J. Kaplan et al., "Scaling Laws for
#: Neural Language Models", arXiv:2001.08361, section 2.1).
BACKWARD = 2 / 3


@dataclass(frozen=True)
class Step:
    """With one algorithm; a mean over the steps from one average to the next."""

    algorithm: str
    sent_bytes: float
    """By each rank."""
    network_s: float
    hidden_s: float | None
    """What of ``network_s`` passes beside the computation. None: the computation is not known."""
    step_s: float | None
    efficiency: float | None
    """The computation over the step."""


@dataclass(frozen=True)
class Calculation:
    load: str
    """The model, in words."""
    nranks: int
    link: Link
    compute_s: float | None
    steps: list[Step]


def calculate(
    name: str, shapes: Sequence[Shape], nranks: int, link: Link, compute_s: float | None = None
) -> Calculation:
    """A step with each algorithm.

    Args:
        shapes: of the model's parameters, in its order.
        link: of each rank.
        compute_s: a step without communication. None: not known.
    """
    buckets = sent.buckets(shapes)
    elements = sum(bucket.elements for bucket in buckets)
    load = f"{name}, {elements:,} parameters in {len(buckets)} bucket{'s' if len(buckets) > 1 else ''},"
    steps = [_step(algorithm, buckets, nranks, link, compute_s) for algorithm in sent.ALGORITHMS]
    return Calculation(load, nranks, link, compute_s, steps)


def _step(
    algorithm: sent.Algorithm, buckets: list[sent.Bucket], nranks: int, link: Link, compute_s: float | None
) -> Step:
    joined = algorithm.steps > 1
    averages = [algorithm.sent(bucket, nranks) for bucket in (_joined(buckets) if joined else buckets)]
    times = [sum(_seconds(nbytes, nranks, link) for nbytes in bucket) for bucket in averages]
    sent_bytes = sum(map(sum, averages)) / algorithm.steps
    network_s = sum(times) / algorithm.steps
    if compute_s is None:
        return Step(algorithm.name, sent_bytes, network_s, None, None, None)
    step_s = compute_s + network_s if joined else _beside(buckets, times, compute_s)
    return Step(algorithm.name, sent_bytes, network_s, compute_s + network_s - step_s, step_s, compute_s / step_s)


def _beside(buckets: list[sent.Bucket], times: list[float], compute_s: float) -> float:
    """The time of a step in which a bucket is averaged as soon as backward has computed it, and the one before is done.
    Backward takes as long for each element."""
    elements = sum(bucket.elements for bucket in buckets)
    computed, end_s = 0, 0.0
    for bucket, time in zip(buckets, times, strict=True):
        computed += bucket.elements
        ready_s = compute_s * (1 - BACKWARD + BACKWARD * computed / elements)
        end_s = max(end_s, ready_s) + time
    return end_s


def _joined(buckets: list[sent.Bucket]) -> list[sent.Bucket]:
    """All that the steps have changed is averaged at once, and nothing exactly."""
    return [sent.Bucket(sum(bucket.elements for bucket in buckets), exact=0)]


def _seconds(sent_bytes: float, nranks: int, link: Link) -> float:
    return 2 * (nranks - 1) * link.latency_s + sent_bytes / link.bytes_per_s
