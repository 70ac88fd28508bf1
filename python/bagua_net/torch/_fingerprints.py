# SPDX-License-Identifier: MIT
"""TORCH_DISTRIBUTED_DEBUG=DETAIL: before a collective moves data, all ranks tell each other what they call.

They do so through torch's store, so that a rank which never comes is named as well. Each collective then costs every
rank some milliseconds and blocks its caller, asynchronous ones too; torch does the same for its own backends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ._store import GivenUp, appears


def describe(name: str, tensors: Sequence[torch.Tensor], opts: Any) -> str:
    """A collective: "all_reduce(float32 [2, 3], SUM)"."""
    parts = [f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors]
    if hasattr(opts, "reduceOp"):
        parts.append(str(getattr(opts.reduceOp, "op", opts.reduceOp)).rpartition(".")[2])
    if hasattr(opts, "rootRank"):
        parts.append(f"root {opts.rootRank}")
    if hasattr(opts, "bits"):
        parts.append(f"{opts.bits} bits, blocks of {opts.block}")
    return f"{name}({', '.join(parts)})"


class Fingerprints:
    """Of one group."""

    def __init__(self, store: Any, prefix: str, rank: int, nranks: int) -> None:
        """``prefix`` is unique to the group in the store."""
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._nranks = nranks
        self._given_up = GivenUp()

    def compare(self, number: int, text: str, seconds: float) -> str:
        """Returns "" where all ranks gave the same text for this collective, or else what is wrong.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        self._store.set(self._key(number, self._rank), text)
        deadline = time.monotonic() + seconds
        theirs: dict[int, str] = {}
        for rank in range(self._nranks):
            if appears(self._store, self._key(number, rank), deadline, self._given_up):
                theirs[rank] = self._store.get(self._key(number, rank)).decode()
        if self._given_up.is_set():
            return f"collective {number}, {text}: aborted while other ranks had not called it"
        missing = [str(rank) for rank in range(self._nranks) if rank not in theirs]
        if missing:
            who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            return f"collective {number}, {text}: {who} did not call any within {seconds:g} s"
        if number > 1:  # all are here, so all have read the texts of the one before
            self._store.delete_key(self._key(number - 1, self._rank))
        return self._difference(number, theirs)

    def _difference(self, number: int, texts: dict[int, str]) -> str:
        callers: dict[str, list[str]] = {}
        for rank, text in texts.items():
            callers.setdefault(text, []).append(str(rank))
        if len(callers) == 1:
            return ""
        calls = "; ".join(f"rank {', '.join(ranks)} calls {text}" for text, ranks in callers.items())
        return f"collective {number} differs between the ranks: {calls}"

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}/{number}/{rank}"

    def give_up(self) -> None:
        """Ends a wait for other ranks. From any thread."""
        self._given_up.set()
