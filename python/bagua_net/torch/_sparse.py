# SPDX-License-Identifier: MIT
"""The sum of sparse tensors in coordinate format (COO), such as the gradients of ``nn.Embedding(sparse=True)``.

The ranks have different numbers of entries. So they first tell each other what they have; then each gets all entries of
all others, and adds up those of the same place. All do so in the same order, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._native import library
from . import _tensors as tensors

#: Integers by which a rank describes its tensor: entries, sparse dimensions, type, dimensions, sizes.
FIELDS = 4 + 64


class Exchange:
    """Of one tensor of this rank, ``own``."""

    def __init__(self, own: torch.Tensor, op: Any) -> None:
        """Raises ValueError where this tensor is not summed."""
        if getattr(op, "op", op) != dist.ReduceOp.SUM:
            raise ValueError("all_reduce: sparse tensors can only be summed, with ReduceOp.SUM")
        if own.dtype not in tensors.TYPES:
            raise ValueError(f"all_reduce: sparse tensors of {own.dtype} cannot be summed; call to_dense() on it")
        self._own = own
        with torch.no_grad():
            mine = own.coalesce()
        self._indices = mine.indices().contiguous()
        self._values = tensors.contiguous(mine.values())
        self._theirs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def described(self) -> torch.Tensor:
        """What the ranks tell each other."""
        own = self._own
        fields = [self._indices.shape[1], own.sparse_dim(), tensors.TYPES.index(own.dtype), own.dim(), *own.shape]
        return torch.tensor(fields + [0] * (FIELDS - len(fields)), dtype=torch.int64, device="cpu")

    def calls(self, described: torch.Tensor) -> list[dict[str, Any]]:
        """The operations that move the entries, given all ranks' descriptions, a row each.

        Raises:
            ValueError: the ranks' tensors differ in more than their entries; on all ranks.
        """
        rows = described.tolist()
        for rank, row in enumerate(rows):
            if row[1:] != rows[0][1:]:
                raise ValueError(f"all_reduce: rank 0 has {_text(rows[0])}, but rank {rank} has {_text(row)}")
        counts, dense = [row[0] for row in rows], self._own.shape[self._own.sparse_dim() :]
        places, values = self._indices.shape[0], self._values.dtype
        self._theirs = [
            (tensors.empty((places, count), torch.int64), tensors.empty((count, *dense), values)) for count in counts
        ]
        return [
            _to_all(self._indices, [indices for indices, _ in self._theirs]),
            _to_all(self._values, [values for _, values in self._theirs]),
        ]

    def store(self) -> None:
        """Puts the sum into the tensor; afterwards it is coalesced."""
        indices = torch.cat([indices for indices, _ in self._theirs], 1)
        values = torch.cat([values for _, values in self._theirs])
        with torch.no_grad():
            total = torch.sparse_coo_tensor(indices, values, self._own.shape, check_invariants=False).coalesce()
            self._own.copy_(total)


def _text(row: Sequence[int]) -> str:
    dims = row[3]
    return f"a {tensors.TYPES[row[2]]} tensor of shape {row[4 : 4 + dims]} with {row[1]} sparse dimensions"


def _to_all(own: torch.Tensor, theirs: Sequence[torch.Tensor]) -> dict[str, Any]:
    """This rank's bytes go to every rank, and theirs come from each."""
    sizes = {
        "send_counts": library.ffi.new("size_t[]", [tensors.size_of(own)] * len(theirs)),
        "recv_counts": library.ffi.new("size_t[]", [tensors.size_of(one) for one in theirs]),
    }
    where = {"sends": tensors.addresses([own] * len(theirs)), "recvs": tensors.addresses(theirs)}
    return {"kind": "BNET_COLL_ALL_TO_ALLV", "dtype": tensors.BYTES} | sizes | where
