# SPDX-License-Identifier: MIT
"""Why other ranks have failed, by torch's store: a rank that fails closes its connections, and the others see no more
than that, one after the other."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from functools import partial

from ._meeting import Meeting
from ._store import GivenUp, becomes

#: Seconds that a failure waits for another rank's reason. A rank that has died gives none.
_PATIENCE_S = 1.0
#: Seconds for which others can read rank 0's reason at least: its process often serves the store, and ends at once.
_FOR_OTHERS_S = 0.5
#: What another rank has to do with; a network that refuses it has reasons of its own.
_OTHER = re.compile(
    r"\brank \d+ (?:lost rank (\d+)|(?:cannot reach|has no connection from) rank (\d+).*(?:ended|gone|reset|closed))"
)


def _other(reason: str) -> int | None:
    found = _OTHER.search(reason)
    return int(found[1] or found[2]) if found else None


class Reasons:
    """Of one group. Any thread."""

    def __init__(self, meeting: Meeting, decided: Callable[[Meeting], str]) -> None:
        """``decided``: why the ranks have agreed that it waits in vain, or ""."""
        self._meeting, self._decided = meeting, decided
        self._explained: dict[str, str] = {}
        self._over = False

    def explain(self, reason: str, *, ends_group: bool) -> str:
        """The reason of this rank's failure; where it lost a rank that has failed as well, with the reason of that one,
        or of the one which that one has lost, and so on. Others are told the first message's, and the first one that
        ends the group."""
        if (self._over or (self._explained and not ends_group)) and _other(reason) is None:
            return reason
        self._over |= ends_group
        if reason not in self._explained:
            found: list[str] = []
            # The store may not answer: then the reason stands as it is.
            thread = threading.Thread(target=self._exchange, args=(reason, found), name="reasons", daemon=True)
            try:
                thread.start()
                thread.join(2 * _PATIENCE_S)
            except RuntimeError:  # no thread can start
                pass
            self._explained[reason] = "; ".join([reason, *found[-1:]])
        return self._explained[reason]

    def _exchange(self, reason: str, found: list[str]) -> None:
        began = time.monotonic()
        try:
            self._meeting.tell_failure(reason)
            if decided := self._decided(self._meeting):
                self._meeting.tell_failure(decided)
                found.append(decided)
            else:
                self._look_for(reason, found, began + _PATIENCE_S)
        except Exception:  # torch has several for a store that cannot be reached
            return
        if self._meeting.rank == 0:
            time.sleep(max(0.0, began + _FOR_OTHERS_S - time.monotonic()))

    def _look_for(self, reason: str, found: list[str], deadline: float) -> None:
        known = {self._meeting.rank}
        while (rank := _other(reason)) is not None and rank not in known:
            known.add(rank)
            if not becomes(partial(self._has_told, rank), deadline, GivenUp()):
                return
            reason = self._meeting.failure_of(rank)
            found.append(f"rank {rank} failed: {reason}")

    def _has_told(self, rank: int) -> bool:
        return bool(self._meeting.failure_of(rank))
