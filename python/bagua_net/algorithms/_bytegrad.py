# SPDX-License-Identifier: MIT
"""ByteGrad: gradients are averaged as codes of 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from ._algorithm import Algorithm, Running
from ._buckets import Layout, Layouts, Span
from ._codec import Codec
from ._compressed import Compression, compressed
from ._job import Job
from ._scale import Scale
from ._sharded import OnShards
from ._switchboard import switchboard_of

#: Elements of a block. With 4 bits in blocks of 512, the small transformer of benchmarks/accuracy ends half a
#: point behind exact averages; in blocks of 128, 0.2 points, for 9 % more bytes.
_BLOCK, _BLOCK_OF_4_BITS = 512, 128


@dataclass(frozen=True)
class ByteGrad(Algorithm):
    """Averages gradients as codes: 8 bits send a quarter of the bytes of float32, 4 bits a seventh.

    Each block of ``block`` elements has a range of its own, so that a layer with small gradients does not lose them
    beside one with large ones; None: 512 elements, or 128 with 4 bits, whose steps are 17 times as large. The error of
    an averaged element is at most half of the mean of the ranks' steps, plus half of the mean's step; a step is a
    block's range by 255, or by 15. With ``error_feedback``, what a rank's encoding loses is added to its next gradient,
    in float32: a copy of the gradients in memory. Parameters of one dimension (biases, norms) stay exact with
    ``exact_one_dimensional``. A block with a value that is not finite is NaN on all ranks.
    """

    bits: int = 8
    block: int | None = None
    error_feedback: bool = True
    exact_one_dimensional: bool = True

    name: ClassVar[str] = "bytegrad"

    def __post_init__(self) -> None:
        self._codec()  # says what is wrong with them

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"block": self._codec().block}

    def _codec(self) -> Codec:
        block = _BLOCK_OF_4_BITS if self.bits == 4 else _BLOCK
        return Codec(self.bits, block if self.block is None else self.block)

    def _compression(self) -> Compression:
        return Compression(self._codec(), self.error_feedback, self.exact_one_dimensional)

    def start(self, job: Job) -> Running:
        return _OnBuckets(self._compression(), job)

    def start_sharded(self, job: Job, has_replicas: bool) -> Running:
        return OnShards(self._compression(), job, has_replicas)


class _OnBuckets(Running):
    """With DistributedDataParallel. Backward's thread looks up layouts; the runner does all else."""

    def __init__(self, how: Compression, job: Job) -> None:
        self._job = job
        self._compressed = compressed(job.own, how.codec, job.device)
        self._layouts = Layouts(job.names(), how.error_feedback, how.exact_one_dimensional)
        self._scale = Scale(job.scaler)
        self._counted = {"elements": 0.0, "bytes": 0.0, "buckets": 0.0}
        model: Any = job.wrapper()
        self._finds_unused = model.find_unused_parameters
        self._switchboard = switchboard_of(model)
        self.resume()

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._follow_scale()
        return self._job.runner.post(partial(self._average, bucket.buffer(), self._layouts.of(bucket)))

    def _follow_scale(self) -> None:
        factor = self._scale.change()
        if factor != 1:
            self._layouts.scale(factor)

    def _average(self, buffer: torch.Tensor, layout: Layout) -> torch.Tensor:
        return self._average_without(self._idle(buffer, layout), buffer, layout)

    def _idle(self, buffer: torch.Tensor, layout: Layout) -> list[nn.Parameter]:
        """Those whose gradient is zero on all ranks. DDP throws the average away of a parameter that no rank used: with
        it, a residual would be lost."""
        if not self._finds_unused:
            return []
        used = torch.stack([part.any() for part in layout.parts(buffer, layout.spans)]).float()
        dist.all_reduce(used, group=self._job.own)
        self._count_exact(used)
        by_any = used.tolist()  # on a device it waits, as DDP does to learn which parameters were used
        return [each for each, is_used in zip(layout.spans, by_any, strict=True) if not is_used]

    def _average_without(self, idle: list[nn.Parameter], buffer: torch.Tensor, layout: Layout) -> torch.Tensor:
        """The average is zero for the idle ones, and their state stays as it is."""
        state = [part for flat in layout.state for part in layout.parts(flat, idle)]
        before = [part.clone() for part in state]
        for part in state:
            part.zero_()
        has_moved = layout.has_moved and bool(idle)
        self._average_all(buffer, layout)
        layout.has_moved |= has_moved
        for part, value in zip(state, before, strict=True):
            part.copy_(value)
        for part in layout.parts(buffer, idle):
            part.zero_()
        return buffer

    def _average_all(self, buffer: torch.Tensor, layout: Layout) -> None:
        work, exact = self._begin_exact(buffer, layout.exact)
        if exact is None or exact.numel() < buffer.numel():
            self._average_compressed(buffer, layout)
        if work is not None:
            work.wait()
            _scatter(buffer, layout.exact, exact)
        self._counted["elements"] += buffer.numel()
        self._counted["buckets"] += 1

    def _begin_exact(self, buffer: torch.Tensor, spans: tuple[Span, ...]) -> tuple[Any, torch.Tensor]:
        """Their sum, under way; their place in the buffer is zero, so that they do not widen a block's range."""
        exact = torch.cat([buffer[start : start + count] for start, count in spans]) if spans else buffer[:0]
        if not spans:
            return None, exact
        for start, count in spans:
            buffer[start : start + count].zero_()
        self._count_exact(exact)
        return dist.all_reduce(exact.div_(self._job.size), group=self._job.own, async_op=True), exact

    def _count_exact(self, x: torch.Tensor) -> None:
        size = self._job.size
        self._counted["bytes"] += 2 * (size - 1) / size * x.nbytes

    def _average_compressed(self, buffer: torch.Tensor, layout: Layout) -> None:
        x = buffer if buffer.dtype == torch.float32 else buffer.float()
        moved = self._moved_into(x, layout)
        self._counted["bytes"] += self._compressed.average(x, layout.flat)
        if moved is not None and layout.flat is not None:
            lost = x.isnan()  # the step will be skipped
            layout.flat.copy_(torch.where(lost, moved, layout.flat))
            layout.has_moved = bool(lost.any())
        if x is not buffer:
            buffer.copy_(x)

    def _moved_into(self, x: torch.Tensor, layout: Layout) -> torch.Tensor | None:
        """What is added to x of residuals at new places. Where ranks share a host, each takes the residual of one share
        only, and now of another one."""
        if not layout.has_moved or layout.flat is None:
            return None
        moved = layout.flat.clone()
        x.add_(moved)
        layout.flat.zero_()
        return moved

    def stats(self) -> dict[str, float]:
        return dict(self._counted)

    def state_dict(self) -> dict[str, Any]:
        self._follow_scale()  # the scaler's own state is that after the step
        return {"residuals": self._layouts.state_dict(), "scale": self._scale.of_residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._layouts.load_state_dict(state["residuals"])
        self._scale.load(state["scale"])

    def pause(self) -> None:
        self._switchboard.target(None)

    def resume(self) -> None:
        self._switchboard.target(self.reduce)

    def stop(self) -> None:
        self._switchboard.target(None)


def _scatter(buffer: torch.Tensor, spans: tuple[Span, ...], values: torch.Tensor) -> None:
    for (start, count), each in zip(spans, values.split([count for _, count in spans]), strict=True):
        buffer[start : start + count] = each
