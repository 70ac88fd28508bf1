# SPDX-License-Identifier: MIT
"""Buckets of gradients, averaged as codes: what ``attach`` and a plain communication hook have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ._buckets import Layout, Layouts, Span
from ._compressed import Compression, compressed
from ._grad_scaler import Scale, unknown_scaler
from ._nodes import Nodes
from ._sent import sent_by_all_reduce
from ._worker import Runner


class BucketAverager:
    """Backward's thread looks up layouts; the runner does all else."""

    def __init__(
        self,
        how: Compression,
        group: dist.ProcessGroup,
        device: torch.device,
        runner: Runner,
        *,
        hosts: Nodes | None,
        names: Mapping[nn.Parameter, str],
        scaler: Any,
        takes_scaler: str,
        finds_unused: bool,
    ) -> None:
        """
        group: for these collectives alone.
        hosts: of its ranks, as :func:`compressed` takes them.
        names: of the parameters whose residuals :meth:`state_dict` has.
        takes_scaler: the user's call that does.
        finds_unused: DistributedDataParallel's ``find_unused_parameters``.
        """
        self._how = how
        self._group = group
        self._size = int(group.size())
        self._runner = runner
        self._compressed = compressed(group, how.codec, device, hosts)
        self._waits = hosts is not None  # NCCL wants the operations of several groups one after the other
        self._layouts = Layouts(names, how.error_feedback, how.exact_one_dimensional)
        self._scale = Scale(scaler)
        self._takes_scaler = takes_scaler
        self._finds_unused = finds_unused
        self._counted = {"elements": 0.0, "bytes": 0.0, "buckets": 0.0}

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._follow_scale()
        return self._runner.post(partial(self._average, bucket.buffer(), self._layouts.of(bucket)))

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if self._how.error_feedback and scaler is not self._scale.scaler and self._layouts.have_any(optimizer):
            raise unknown_scaler("bytegrad", self._takes_scaler)

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
        dist.all_reduce(used, group=self._group)
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
        if work is not None and self._waits:
            work.wait()
        if exact.numel() < buffer.numel():
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
        return dist.all_reduce(exact.div_(self._size), group=self._group, async_op=True), exact

    def _count_exact(self, x: torch.Tensor) -> None:
        self._counted["bytes"] += sent_by_all_reduce(x.nbytes, self._size)

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


def _scatter(buffer: torch.Tensor, spans: tuple[Span, ...], values: torch.Tensor) -> None:
    for (start, count), each in zip(spans, values.split([count for _, count in spans]), strict=True):
        buffer[start : start + count] = each
