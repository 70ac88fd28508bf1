# SPDX-License-Identifier: MIT
"""The codec: which tensors it accepts, and which implementation runs where."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Protocol

import torch

from . import eager, native
from .arguments import BYTES, FLOAT32, FLOATS, check_size, checked, checked_rows
from .format import Format


class Implementation(Protocol):
    """What eager.py, native.py and kernels.py have, with arguments that are checked."""

    def encode(self, form: Format, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None: ...

    def decode(self, form: Format, encoded: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None: ...

    def decode_sum_encode(
        self,
        form: Format,
        rows: torch.Tensor,
        count: int,
        divisor: float,
        residual: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None: ...


@dataclass(frozen=True)
class Codec(Format):
    """Encodes tensors of floats in 8 or 4 bits for each element and a range for each block, and decodes them.

    >>> codec = Codec(bits=8)
    >>> x = torch.tensor([-1.0, -0.5, 0.0, 1.0])
    >>> codec.decode(codec.encode(x), torch.empty(4))
    tensor([-1.0000, -0.4980,  0.0039,  1.0000])

    A decoded element differs from x by half a step at most, besides the rounding of float32: a step is the range of the
    block by 255 or by 15. A block with a value that is not finite decodes to NaN. The same bytes have the same bits of
    float32 on every device and every rank, and the same elements have the same bytes.

    Tensors have one dimension, are contiguous, and all of a call are on one device. Elements may be float16 or bfloat16
    as well; they are computed in float32. Nothing is recorded for autograd.

    All methods raise ValueError for a tensor of another type, shape, size or device, and TypeError for what is none.
    """

    def encode(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The ``nbytes(x.numel())`` bytes, in ``out`` or a new tensor."""
        x = checked(x, "x", FLOATS)
        out = self._output(out, x.numel(), x)
        self._on(x.device).encode(self, x, None, out)
        return out

    def encode_with_residual(
        self, x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Encodes x + residual. Then the residual, float32 of the size of x, is what decoding does not give back.

        In a block that is not finite the residual stays as it was.
        """
        x = checked(x, "x", FLOATS)
        residual = self._residual(residual, x.numel(), x)
        out = self._output(out, x.numel(), x)
        self._on(x.device).encode(self, x, residual, out)
        return out

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Fills ``out``, whose size is that of the encoded tensor, and returns it."""
        self._decode(encoded, out, adds=False)
        return out

    def decode_add(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Adds the decoded elements to ``out``, in float32, and returns it."""
        self._decode(encoded, out, adds=True)
        return out

    def decode_sum_encode(
        self,
        rows: torch.Tensor,
        count: int,
        out: torch.Tensor | None = None,
        *,
        divisor: float = 1,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encodes a sum of encoded tensors: what the owner of a share does with those of all ranks.

        Args:
            rows: shape (ranks, ``nbytes(count)``): one encoded tensor a row. They are added in this order, in float32.
            count: elements of each of them.
            divisor: of the sum, a positive number: 1, or the number of ranks for a mean.
            residual: as of :meth:`encode_with_residual`, for the encoding of the sum.
        """
        rows = checked_rows(rows, "rows")
        check_size(rows, "rows", self.nbytes(count), f"a row of {count} elements with {self}")
        if not (0 < divisor < math.inf):
            raise ValueError(f"codec: divisor={divisor!r} is not possible; give a positive number")
        residual = None if residual is None else self._residual(residual, count, rows)
        out = self._output(out, count, rows)
        self._on(rows.device).decode_sum_encode(self, rows, count, float(divisor), residual, out)
        return out

    def _decode(self, encoded: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
        out = checked(out, "out", FLOATS)
        encoded = checked(encoded, "encoded", BYTES, out)
        check_size(encoded, "encoded", self.nbytes(out.numel()), f"an out of {out.numel()} elements with {self}")
        self._on(out.device).decode(self, encoded, out, adds=adds)

    def _output(self, out: torch.Tensor | None, count: int, like: torch.Tensor) -> torch.Tensor:
        if out is None:
            return torch.empty(self.nbytes(count), dtype=torch.uint8, device=like.device)
        out = checked(out, "out", BYTES, like)
        check_size(out, "out", self.nbytes(count), f"an input of {count} elements with {self}")
        return out

    def _residual(self, residual: torch.Tensor, count: int, like: torch.Tensor) -> torch.Tensor:
        residual = checked(residual, "residual", FLOAT32, like)
        check_size(residual, "residual", count, f"an input of {count} elements")
        return residual

    def _on(self, device: torch.device) -> Implementation:
        return _implementation(device)


class EagerCodec(Codec):
    """The same in operations of torch alone, on any device: for comparison."""

    def _on(self, device: torch.device) -> Implementation:
        return eager


def _implementation(device: torch.device) -> Implementation:
    if device.type == "cpu":
        return native
    if device.type == "cuda":
        return _for_cuda(device)
    return eager


@functools.cache
def _for_cuda(device: torch.device) -> Implementation:
    """The kernels, or eager torch where they do not run: without Triton, or without the C compiler that it needs."""
    try:
        from . import kernels
    except ImportError:
        return eager
    try:
        kernels.encode(Format(), torch.zeros(1, device=device), None, torch.empty(9, dtype=torch.uint8, device=device))
    except Exception as error:
        warnings.warn(f"bagua_net: the codec runs in eager torch, which is slower: {error!r}", stacklevel=2)
        return eager
    return kernels
