# SPDX-License-Identifier: MIT
"""Compressed gradients with fully_shard (FSDP2): its reduce-scatter, and the average between replicas.

FSDP2 calls both from backward, on the CPU inline and with CUDA on streams of its own, so no worker runs them. What it
passes is the flat gradients of one module: for each rank of the shard group a row with its chunk of every parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ._algorithm import AlgorithmImpl
from ._buckets import Span, joined
from ._codec import Codec
from ._compressed import Compressed, Compression, compressed
from ._context import TAKES_SCALER, AlgorithmContext
from ._grad_scaler import Scale, scaled, unknown_scaler
from ._names import reduce_scatter_single
from ._nodes import Nodes
from ._sent import sent_by_all_reduce


@dataclass(frozen=True)
class Part:
    """A module that fully_shard was applied to, without those inside it that it was applied to as well."""

    name: str
    module: FSDPModule
    parameters: tuple[nn.Parameter, ...]


def parts_of(module: nn.Module) -> list[Part]:
    parts = []
    for name, each in module.named_modules():
        if isinstance(each, FSDPModule):
            parts.append(Part(name, each, tuple(_own_parameters(each))))
    return parts


def _own_parameters(module: FSDPModule) -> list[nn.Parameter]:
    """In the order of the flat gradients."""
    try:
        group = module._get_fsdp_state()._fsdp_param_group
        sharded = [each.sharded_param for each in group.fsdp_params] if group is not None else []
    except AttributeError:  # another torch has it elsewhere
        sharded = _children_first(module)
    return [parameter for parameter in sharded if parameter.requires_grad]


def _children_first(module: nn.Module) -> list[nn.Parameter]:
    """In fully_shard's order: those of the module's children, then its own ones; a shared one where it comes first."""
    parts = [_children_first(child) for child in module.children() if not isinstance(child, FSDPModule)]
    return list(dict.fromkeys(chain(*parts, module.parameters(recurse=False))))


def shard_group_of(module: nn.Module) -> dist.ProcessGroup:
    """Raises ValueError: a trained parameter is not sharded, or they are not on one mesh of one dimension."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            raise ValueError(
                f"bagua_net.algorithms: attach: fully_shard has left out the parameter {name}, whose gradient nobody "
                "would average; apply fully_shard to the whole model, without ignored_params that are trained"
            )
    meshes = {parameter.device_mesh for parameter in module.parameters() if isinstance(parameter, DTensor)}
    mesh = meshes.pop()
    if meshes or mesh.ndim != 1:
        raise ValueError(
            "bagua_net.algorithms: attach: fully_shard was applied with meshes of several dimensions, whose all-reduce "
            'it does itself; shard on mesh["shard"] alone and pass replicate=mesh["replicate"] to attach'
        )
    return mesh.get_group()


def refuse_other_calls(module: nn.Module, has_replicas: bool) -> None:
    """Raises ValueError: a call of somebody else's is in the place that the algorithm needs."""
    for part in parts_of(module):
        group = getattr(part.module._get_fsdp_state(), "_fsdp_param_group", None)
        what = "all-reduce hook" if has_replicas else "reduce-scatter"
        call = getattr(group, "_all_reduce_hook" if has_replicas else "_reduce_scatter_comm", None)
        if call is None or isinstance(call, (_Average, _ReduceScatter)) or type(call).__module__.startswith("torch."):
            continue
        raise ValueError(
            f"bagua_net.algorithms: attach: the module {part.name!r} has the {what} {call!r}, and fully_shard takes "
            "one only; attach without it"
        )


def exact_spans(part: Part, ranks: int, elements: int) -> tuple[Span, ...]:
    """Where a row of so many elements has the chunks of parameters of one dimension. A step without some parameters
    has shorter rows: then none is known."""
    spans, at = [], 0
    for parameter in part.parameters:
        chunk = _chunk(parameter, ranks)
        if parameter.dim() < 2:
            spans.append((at, chunk))
        at += chunk
    return joined(spans) if at == elements else ()


def _chunk(parameter: nn.Parameter, ranks: int) -> int:
    """Its elements in a row."""
    (placement,) = parameter.placements
    rows = parameter.shape[placement.dim]
    chunk: int = -(-rows // ranks) * (parameter.numel() // max(1, rows))
    return chunk


class ShardedByteGrad(AlgorithmImpl):
    """ByteGrad with fully_shard. Without replicas the reduce-scatter is compressed; with them, only the average between
    the replicas is: that is what crosses the slow network.

    A residual of the reduce-scatter would be as large as the gradients before sharding, on every rank. So error
    feedback applies to the average between replicas, whose residuals have the size of a shard.
    """

    def __init__(self, how: Compression, context: AlgorithmContext, has_replicas: bool) -> None:
        self._context = context
        self._keeps_residuals = has_replicas and how.error_feedback
        self._calls: dict[str, _Average | _ReduceScatter] = {}
        self._scale = Scale(context.scaler)
        self._counted = {"elements": 0.0, "bytes": 0.0}
        codes = _Codes(how.codec, context.hosts)
        shards = shard_group_of(context.module)
        ranks = shards.size()
        self._shard = (int(shards.rank()), int(ranks))
        parts = {part.name: part for part in parts_of(context.module)}
        for name, part in parts.items():  # what may fail comes before the first change of the model
            made = (
                _Average(self, how, context, part, ranks, codes)
                if has_replicas
                else _ReduceScatter(self, how, part, codes)
            )
            self._calls[name] = made
        for name, call in self._calls.items():
            if isinstance(call, _Average):
                parts[name].module.set_all_reduce_hook(call)
            else:
                parts[name].module.set_custom_reduce_scatter(call)

    def count(self, elements: int, sent: float) -> None:
        self._counted["elements"] += elements
        self._counted["bytes"] += sent

    def follow_scale(self) -> None:
        factor = self._scale.change()
        if factor != 1:
            for residual in self._residuals().values():
                scaled(residual, factor)

    def _averages(self) -> dict[str, _Average]:
        return {name: call for name, call in self._calls.items() if isinstance(call, _Average)}

    def _residuals(self) -> dict[str, torch.Tensor]:
        return {name: each.residual for name, each in self._averages().items() if each.residual is not None}

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        is_unknown = self._keeps_residuals and scaler is not self._scale.scaler
        if is_unknown and self._context.is_trained_by(optimizer):
            raise unknown_scaler("bytegrad", TAKES_SCALER)

    def stats(self) -> dict[str, float]:
        return dict(self._counted)

    def state_dict(self) -> dict[str, Any]:
        self.follow_scale()  # the scaler's own state is that after the step
        residuals = {name: residual.clone() for name, residual in self._residuals().items()}
        elements = {name: each.elements for name, each in self._averages().items()}
        return {"residuals": residuals, "elements": elements, "scale": self._scale.of_residuals, "shard": self._shard}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError: it is of another shard, or fully_shard was applied to other modules."""
        of, ranks = state["shard"]
        if (of, ranks) != self._shard:
            raise ValueError(
                f"bagua_net.algorithms: load_state_dict: the state is of shard {of} of {ranks}, and this rank has "
                f"shard {self._shard[0]} of {self._shard[1]}; load what a rank with it has saved, or begin without it"
            )
        averages = self._averages()
        for name in {**state["elements"], **averages}:
            elements = state["elements"].get(name, "none")
            here = averages[name].elements if name in averages else "none"
            if elements != here:
                raise ValueError(
                    f"bagua_net.algorithms: load_state_dict: the state is of a shard with {elements} elements of the "
                    f"module {name!r}, and here it has {here}; apply fully_shard in the same way, or begin without it"
                )
        for name, average in averages.items():
            average.load(state["residuals"].get(name))
        self._scale.load(state["scale"])

    def pause(self) -> None:
        for call in self._calls.values():
            call.is_exact = True

    def resume(self) -> None:
        for call in self._calls.values():
            call.is_exact = False

    def stop(self) -> None:
        """FSDP2 never gives up a hook, so the hooks stay and average exactly: on FSDP2's own group or, between
        replicas, on the model's. Without that average the replicas' weights would differ."""
        self.pause()
        for call in self._calls.values():
            call.leave()

    def abandon(self) -> None:
        """Some rank has no hook between replicas: the others must not wait for it there."""
        self.stop()
        for average in self._averages().values():
            average.is_idle = True


class _Codes:
    """Collectives of codes, for each device that FSDP2 has gradients on: with CPUOffloadPolicy it is not the
    parameters'. All modules share them, one after the other: the scratch that they keep is that of the largest one, and
    not as large as the model."""

    def __init__(self, codec: Codec, hosts: Nodes | None) -> None:
        self._codec = codec
        self._hosts = hosts
        self._made: dict[tuple[dist.ProcessGroup, torch.device], Compressed] = {}

    def over(self, group: dist.ProcessGroup, device: torch.device) -> Compressed:
        key = (group, device)
        if key not in self._made:
            self._made[key] = compressed(group, self._codec, device, self._hosts)
        return self._made[key]

    def clear(self) -> None:
        self._made.clear()


class _Ended(AlgorithmImpl):
    """In the place of a detached algorithm, for the hooks that FSDP2 keeps: it has no model and no optimizer."""

    def count(self, elements: int, sent: float) -> None:
        """Nobody asks for it."""

    def follow_scale(self) -> None:
        """There are no residuals."""


class _Average:
    """The hook after a reduce-scatter: averages this rank's shard with its replicas."""

    def __init__(
        self,
        impl: ShardedByteGrad,
        how: Compression,
        context: AlgorithmContext,
        part: Part,
        ranks: int,
        codes: _Codes,
    ) -> None:
        self._impl: ShardedByteGrad | _Ended = impl
        self._group = context.own
        self._after = context.group
        self._part = part
        self._ranks = ranks
        self._how = how
        self._codes = codes
        self.elements = sum(_chunk(each, ranks) for each in part.parameters)  # of a shard that has all
        self.residual: torch.Tensor | None = None
        self.is_exact = False
        self.is_idle = False

    def load(self, residual: torch.Tensor | None) -> None:
        """None: of zeros. Nothing where there is no error feedback."""
        if residual is None or not self._how.error_feedback:
            self.residual = None
        else:
            self.residual = residual.to(torch.float32, copy=True)

    def leave(self) -> None:
        """The hook stays, and averages exactly: it does without what compression needs."""
        self._impl, self._group, self.residual = _Ended(), self._after, None
        self._codes.clear()

    def __call__(self, shard: torch.Tensor) -> None:
        if self.is_idle:
            return
        if shard.is_cuda:  # FSDP2 allocates it on another stream, and may free it before this average has ended
            shard.record_stream(torch.cuda.current_stream(shard.device))
        self._impl.follow_scale()
        with torch.no_grad(), self._impl.beside_runner():
            if self.is_exact:
                self._average_exactly(shard)
            else:
                self._average(shard)

    def _average(self, shard: torch.Tensor) -> None:
        spans = exact_spans(self._part, self._ranks, shard.numel()) if self._how.exact_one_dimensional else ()
        exact = _taken(shard, spans)
        if exact is not None:
            self._average_exactly(exact)
        if exact is None or exact.numel() < shard.numel():
            x = shard if shard.dtype == torch.float32 else shard.float()
            sent = self._codes.over(self._group, x.device).average(x, self._residual_for(shard))
            self._impl.count(shard.numel(), sent)
            if x is not shard:
                shard.copy_(x)
        if exact is not None:
            _put(shard, spans, exact)

    def _residual_for(self, shard: torch.Tensor) -> torch.Tensor | None:
        """None where the step has not all parameters of the module: which ones, FSDP2 does not say."""
        if not self._how.error_feedback or shard.numel() != self.elements:
            return None
        if self.residual is None:
            self.residual = torch.zeros(shard.numel(), dtype=torch.float32, device=shard.device)
        self.residual = self.residual.to(shard.device)  # a state comes from a file
        return self.residual

    def _average_exactly(self, x: torch.Tensor) -> None:
        size = self._group.size()
        dist.all_reduce(x.div_(size), group=self._group)
        self._impl.count(0, sent_by_all_reduce(x.nbytes, size))


class _ReduceScatter:
    """FSDP2's reduce-scatter, of codes. On FSDP2's own group: it is called where FSDP2 would call its own."""

    def __init__(self, impl: ShardedByteGrad, how: Compression, part: Part, codes: _Codes) -> None:
        self._impl: ShardedByteGrad | _Ended = impl
        self._how = how
        self._part = part
        self._codes = codes
        self.is_exact = False

    def leave(self) -> None:
        """Its group stays FSDP2's."""
        self._impl = _Ended()
        self._codes.clear()

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        if self.is_exact:
            return reduce_scatter_single(output_tensor, input_tensor, op, group, async_op)
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise RuntimeError(
                "bagua_net.algorithms: fully_shard asks for a sum that is multiplied first, which set_gradient_divide_"
                "factor causes; also call set_force_sum_reduction_for_comms(True)"
            )
        with torch.no_grad(), self._impl.beside_runner():
            self._reduce_scatter(output_tensor, input_tensor, group)
            if op == dist.ReduceOp.SUM:
                output_tensor.mul_(group.size())
        return None

    def _reduce_scatter(self, output: torch.Tensor, x: torch.Tensor, group: dist.ProcessGroup) -> None:
        size = group.size()
        spans = exact_spans(self._part, size, output.numel()) if self._how.exact_one_dimensional else ()
        rows = x.view(size, output.numel())
        exact = _taken(rows, spans)
        mean = output if output.dtype == torch.float32 else output.float()
        if exact is not None:
            own = torch.empty_like(exact[0])
            reduce_scatter_single(own, exact.div_(size).view(-1), group=group)
            self._impl.count(0, (size - 1) * own.numel() * own.element_size())
        if exact is None or own.numel() < output.numel():
            codes = self._codes.over(group, x.device)
            sent = codes.reduce_scatter_average(mean, x if x.dtype == torch.float32 else x.float(), None)
            self._impl.count(x.numel(), sent)
        if mean is not output:
            output.copy_(mean)
        if exact is not None:
            _put(output, spans, own)


def _taken(x: torch.Tensor, spans: tuple[Span, ...]) -> torch.Tensor | None:
    """The elements of the spans, in the last dimension. Their place becomes zero: it widens no block's range."""
    if not spans:
        return None
    taken = torch.cat([x[..., start : start + count] for start, count in spans], dim=-1)
    for start, count in spans:
        x[..., start : start + count] = 0
    return taken


def _put(x: torch.Tensor, spans: tuple[Span, ...], values: torch.Tensor) -> None:
    for (start, count), each in zip(spans, values.split([count for _, count in spans], dim=-1), strict=True):
        x[..., start : start + count] = each
