# SPDX-License-Identifier: MIT
"""QAdam: gradients are averaged exactly in a warm-up, and then momentum as codes of 8 bits or 1 bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from ._algorithm import Algorithm, AlgorithmImpl
from ._buckets import Layout, Layouts
from ._bytegrad import ByteGradImpl
from ._chunks import is_dense
from ._codec import Codec
from ._compressed import Compression
from ._context import AlgorithmContext, ModelContext
from ._dispatcher import refuse_join
from ._one_bit import OneBit
from ._qadam_optimizer import Group, QAdamOptimizer
from ._sent import sent_by_all_reduce

_WITHOUT_SCALER = (
    "a GradScaler would scale momentum, which qadam has in the place of gradients; train in bfloat16, which needs no "
    "scaler, or use bytegrad"
)

#: A byte's.
_BITS = 8

#: Of each parameter of a bucket: itself, its gradient there, and its group of the optimizer.
_Local = list[tuple[torch.Tensor, torch.Tensor, Group]]


@dataclass(frozen=True)
class QAdam(Algorithm):
    """Averages gradients exactly in the warm-up of a :class:`QAdamOptimizer`, and from then on momentum as codes: 8
    bits send a quarter of the bytes of float32, 1 bit a thirtieth.

    Each rank adds its gradient to its copy of the momentum, which is equal on all ranks; the mean of these is the new
    momentum. The codes of 8 bits are those of ByteGrad. One bit is a sign, with the mean magnitude of a block of
    ``block`` elements. With ``error_feedback``, which one bit needs, what encoding loses is added to the next momentum,
    in float32. Parameters of one dimension (biases, norms) stay exact with ``exact_one_dimensional``.
    """

    bits: int = 8
    block: int = 512
    error_feedback: bool = True
    exact_one_dimensional: bool = True

    name: ClassVar[str] = "qadam"
    averages = "momentum"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or self.bits not in (8, 1):
            raise ValueError(f"bagua_net.algorithms: QAdam: bits={self.bits!r}; use 8 or 1")
        if self.bits == 1 and not self.error_feedback:
            raise ValueError(
                "bagua_net.algorithms: QAdam: one bit loses as much as it sends, and without error_feedback for good; "
                "leave error_feedback on, or use bits=8"
            )
        self._compression()  # says what is wrong with the block

    def _compression(self) -> Compression:
        """For one bit, without its codec."""
        return Compression(Codec(_BITS, self.block), self.error_feedback, self.exact_one_dimensional)

    def _check(self, context: ModelContext) -> Mapping[str, Any]:
        return _phase(_optimizer_of(context))

    def _adds_by_host(self) -> bool:
        return self.bits == _BITS

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        optimizer = _optimizer_of(context)
        return (OneBitQAdamImpl if self.bits == 1 else QAdamImpl)(self._compression(), context, optimizer)


def _optimizer_of(context: ModelContext) -> QAdamOptimizer:
    """Raises ValueError: it is another one, or has not all parameters of the model; or there is a GradScaler."""
    optimizer = context.optimizer
    if not isinstance(optimizer, QAdamOptimizer):
        raise ValueError(
            f"bagua_net.algorithms: attach: qadam averages the momentum of its own optimizer, not of "
            f"{type(optimizer).__name__}; replace it before attach: optimizer = bagua_net.algorithms.QAdamOptimizer("
            "model.parameters(), lr=1e-3, warmup_steps=N), with N a seventh to a quarter of all steps, and leave out "
            "gradient clipping and GradScaler; or use bytegrad, which works with any optimizer and both"
        )
    if context.scaler is not None:
        raise ValueError(f"bagua_net.algorithms: attach: {_WITHOUT_SCALER}")
    context.refuse_left_out("whose momentum qadam averages")
    return optimizer


def _phase(optimizer: QAdamOptimizer) -> dict[str, Any]:
    """What the ranks compare: with another phase they would wait for each other for ever."""
    settings = ("warmup_steps", "betas", "eps", "weight_decay")
    return {
        "the optimizer's steps so far": optimizer.steps,
        **{f"the optimizer's {name}": [group[name] for group in optimizer.param_groups] for name in settings},
    }


class QAdamImpl(ByteGradImpl):
    """With DistributedDataParallel. What a pass averages is settled at its first bucket."""

    bits: ClassVar[int] = _BITS

    def __init__(self, how: Compression, context: AlgorithmContext, optimizer: QAdamOptimizer) -> None:
        self._optimizer = optimizer
        self._paused = False
        self._is_momentum = False
        super().__init__(how, context)

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            if not self._paused:
                refuse_join(self._context.wrapper(), "qadam")
            self._is_momentum = self._optimizer.begin_backward(self._context.parameters.values()) and not self._paused
        if not self._is_momentum:
            self._count(bucket.buffer())
            return self._dispatcher.plain(bucket)
        local = self._local_momentum(bucket)
        return self._context.runner.post(partial(self._average_momentum, local, bucket.buffer(), self._layout(bucket)))

    def check_scaler(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if not self._paused and self._context.is_trained_by(optimizer):
            raise RuntimeError(f"bagua_net.algorithms: {_WITHOUT_SCALER}")

    def _count(self, buffer: torch.Tensor) -> None:
        self._counted["elements"] += buffer.numel()
        self._counted["bytes"] += sent_by_all_reduce(buffer.nbytes, self._context.size)
        self._counted["buckets"] += 1

    def _local_momentum(self, bucket: Any) -> _Local:
        parameters, buffer = bucket.parameters(), bucket.buffer()
        groups = self._optimizer.forming(parameters)
        local = []
        for each, gradient in zip(parameters, bucket.gradients(), strict=True):
            if each in groups:
                local.append((each, _as_laid_out(buffer, each, gradient), groups[each]))
            elif each.requires_grad:
                self._context.refuse_unknown(bucket, "qadam")
            else:  # frozen since DDP was made: it has no gradient
                gradient.zero_()
        return local

    def _layout(self, bucket: Any) -> Layout:
        return self._layouts.of(bucket)

    def _average_momentum(self, local: _Local, buffer: torch.Tensor, layout: Layout) -> torch.Tensor:
        idle = self._idle(buffer, layout)
        self._optimizer.not_forming(idle)
        for each in local:
            self._optimizer.form(*each)
        self._average_without(idle, buffer, layout)
        for each in local:
            self._optimizer.formed(*each)
        for parameter, momentum, _ in local:
            self._optimizer.remember(parameter, momentum)
        return buffer

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "bits": self.bits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError: what was kept of one bit is nothing for eight, and the other way round."""
        if state.get("bits") != self.bits:
            raise ValueError(
                f"bagua_net.algorithms: load_state_dict: the state is of QAdam(bits={state.get('bits')!r}), and here "
                f"QAdam(bits={self.bits}) is at work; begin without the state"
            )
        super().load_state_dict(state)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        """Also at the beginning."""
        self._paused = False
        super().resume()


def _as_laid_out(buffer: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient in a bucket, element by element that of its parameter. DDP lays gradients out as the parameters are,
    for example channels_last, and ``GradBucket.gradients()`` reads them as if they were contiguous."""
    if not is_dense(parameter):
        return gradient
    return buffer.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())


@dataclass
class _WithOwned(Layout):
    """With what this rank's encoding of means has lost, of the share of the bucket that it owns."""

    owned: torch.Tensor | None

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        return super().state if self.owned is None else (*super().state, self.owned)


class OneBitQAdamImpl(QAdamImpl):
    bits = 1

    def __init__(self, how: Compression, context: AlgorithmContext, optimizer: QAdamOptimizer) -> None:
        super().__init__(how, context, optimizer)
        self._one_bit = OneBit(context.own, how.codec.block)
        self._owned = Layouts(context.names(), how.error_feedback, how.exact_one_dimensional)

    def _layout(self, bucket: Any) -> _WithOwned:
        layout = self._layouts.of(bucket)
        return _WithOwned(**vars(layout), owned=self._owned.of(bucket).flat)

    def _average_compressed(self, buffer: torch.Tensor, layout: Layout) -> None:
        assert isinstance(layout, _WithOwned)
        assert layout.flat is not None
        assert layout.owned is not None
        x = buffer.float()
        self._counted["bytes"] += self._one_bit.average(x, layout.flat, layout.owned)
        buffer.copy_(x)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "owned": self._owned.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._owned.load_state_dict(state["owned"])
