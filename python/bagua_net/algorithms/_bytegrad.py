# SPDX-License-Identifier: MIT
"""ByteGrad: gradients are averaged as codes of 8 or 4 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ._algorithm import Algorithm, AlgorithmImpl
from ._bucket_averager import BucketAverager
from ._codec import Codec
from ._compressed import Compression
from ._context import TAKES_SCALER, AlgorithmContext
from ._dispatcher import dispatcher_of
from ._sharded import ShardedByteGrad

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

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"block": self._codec().block}

    def _codec(self) -> Codec:
        block = _BLOCK_OF_4_BITS if self.bits == 4 else _BLOCK
        return Codec(self.bits, block if self.block is None else self.block)

    def compression(self) -> Compression:
        return Compression(self._codec(), self.error_feedback, self.exact_one_dimensional)

    def _adds_by_host(self) -> bool:
        return True

    def _start(self, context: AlgorithmContext) -> AlgorithmImpl:
        return ByteGradImpl(self.compression(), context)

    def _start_sharded(self, context: AlgorithmContext, has_replicas: bool) -> AlgorithmImpl:
        return ShardedByteGrad(self.compression(), context, has_replicas)


class ByteGradImpl(BucketAverager, AlgorithmImpl):
    """With DistributedDataParallel."""

    def __init__(self, how: Compression, context: AlgorithmContext) -> None:
        model: Any = context.wrapper()
        super().__init__(
            how,
            context.own,
            context.device,
            context.runner,
            hosts=context.hosts,
            names=context.names(),
            scaler=context.scaler,
            takes_scaler=TAKES_SCALER,
            finds_unused=model.find_unused_parameters,
        )
        self._context = context
        self._dispatcher = dispatcher_of(model)
        self.resume()

    def pause(self) -> None:
        self._dispatcher.set_target(None)

    def resume(self) -> None:
        self._dispatcher.set_target(self.reduce)

    def stop(self) -> None:
        self._dispatcher.set_target(None)
