# SPDX-License-Identifier: MIT
"""What a network and a codec cost, measured once, and what a step's averages would take by these figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from ._codec import Codec
from ._sent import sent_by_all_reduce

_SMALL, _LARGE = 1 << 10, 1 << 22  # elements of float32
_REPEATS, _CODEC_ELEMENTS = 5, 1 << 20
#: Seconds after which a size is not repeated.
_ENOUGH_S = 0.5


@dataclass(frozen=True)
class Costs:
    """Equal on all ranks: the slowest one's."""

    latency_s: float  # of an all-reduce of few bytes
    bytes_per_s: float  # that each rank sends in an all-reduce of many
    codec_s: float  # for an element: encoded once, and decoded as often as ByteGrad does

    def ring(self, nbytes: float, size: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return self.latency_s + sent_by_all_reduce(nbytes, size) / self.bytes_per_s

    def compressed(self, elements: int, codec: Codec, size: int) -> float:
        """Seconds of an average of codes: as many bytes of codes leave each rank, in two exchanges."""
        sent = sent_by_all_reduce(codec.nbytes(elements), size)
        return 2 * self.latency_s + sent / self.bytes_per_s + elements * self.codec_s


def probe(group: dist.ProcessGroup, device: torch.device) -> Costs:
    """Measures on all ranks at once. A few all-reduces of 4 KiB and 16 MiB; of one rank, which sends nothing, too."""
    size = group.size()
    small, large = (_all_reduce_s(group, device, elements) for elements in (_SMALL, _LARGE))
    sent = sent_by_all_reduce(4 * (_LARGE - _SMALL), size)
    own = [small, (large - small) / sent if sent and large > small else 0.0, _codec_s(device)]
    slowest = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    latency_s, s_per_byte, codec_s = slowest.tolist()
    return Costs(latency_s, 1 / max(s_per_byte, 1e-12), codec_s)


def _all_reduce_s(group: dist.ProcessGroup, device: torch.device, elements: int) -> float:
    x = torch.zeros(elements, dtype=torch.float32, device=device)

    def call() -> None:
        dist.all_reduce(x, group=group)

    first = torch.tensor([_seconds(call, device)], dtype=torch.float32, device=device)
    dist.all_reduce(first, dist.ReduceOp.MAX, group=group)  # all ranks repeat it as often
    repeats = 1 if first.item() > _ENOUGH_S else _REPEATS
    return median(_seconds(call, device) for _ in range(repeats))


def _codec_s(device: torch.device) -> float:
    """ByteGrad encodes an element once and a share again, decodes a contribution of each rank to its share, and the
    result: about twice each."""
    codec, x = Codec(), torch.linspace(-1, 1, _CODEC_ELEMENTS, dtype=torch.float32, device=device)
    code = codec.encode(x)

    def call() -> None:
        for _ in range(2):
            codec.encode(x, code)
            codec.decode(code, x)

    call()
    return median(_seconds(call, device) for _ in range(_REPEATS)) / _CODEC_ELEMENTS


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
