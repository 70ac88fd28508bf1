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

from ._meeting import Meeting
from ._store import GivenUp, becomes, value_of


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

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._given_up = GivenUp()

    def compare(self, number: int, text: str, seconds: float) -> str:
        """Returns "" where all ranks gave the same text for this collective, or else what is wrong.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        meeting, deadline = self._meeting, time.monotonic() + seconds
        meeting.wait(deadline, self._given_up)
        missing = meeting.missing()
        identities = meeting.identities or []  # after it: they may meet at the deadline
        theirs: dict[int, str] = {}
        if identities:
            meeting.store.set(self._key(number, meeting.rank), f"{meeting.identity} {number} {text}")
            theirs = self._theirs(number, identities, deadline)
            missing = [rank for rank in range(meeting.nranks) if rank not in theirs]
        if self._given_up.is_set():
            return f"collective {number}, {text}: aborted while other ranks had not called it"
        if missing:
            who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            return f"collective {number}, {text}: {who} did not call any within {seconds:g} s"
        return self._difference(number, theirs)

    def _theirs(self, number: int, identities: Sequence[str], deadline: float) -> dict[int, str]:
        theirs: dict[int, str] = {}
        for rank, identity in enumerate(identities):
            told = f"{identity} {number} "

            def has_come(rank: int = rank, told: str = told) -> bool:
                found = value_of(self._meeting.store, self._key(number, rank)).decode()
                if found.startswith(told):
                    theirs[rank] = found[len(told) :]
                return rank in theirs

            becomes(has_come, deadline, self._given_up)
        return theirs

    def _difference(self, number: int, texts: dict[int, str]) -> str:
        callers: dict[str, list[str]] = {}
        for rank, text in texts.items():
            callers.setdefault(text, []).append(str(rank))
        if len(callers) == 1:
            return ""
        calls = "; ".join(f"rank {', '.join(ranks)} calls {text}" for text, ranks in callers.items())
        return f"collective {number} differs between the ranks: {calls}"

    def _key(self, number: int, rank: int) -> str:
        """Two keys in turn: a rank that writes this one again has seen that all have come to the collective between,
        and so have read what it wrote before."""
        return f"calls/{number % 2}/{rank}"

    def give_up(self) -> None:
        """Ends a wait for other ranks. From any thread."""
        self._given_up.set()
