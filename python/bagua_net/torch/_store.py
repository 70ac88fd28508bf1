# SPDX-License-Identifier: MIT
"""What ranks tell each other in torch's store: each key has one writer, and the newest value counts.

All groups of a process share one connection to the store, and the store's own wait occupies it: other threads could not
publish what the peers wait for. So the waits here poll, and leave the connection to others in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds between two polls: the first pause, and the longest.
PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class GivenUp:
    """Whether a wait is in vain. A signal handler may say so on the very thread that waits: threading.Event has a lock
    that this thread may hold then."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


def value_of(store: Any, key: str) -> bytes:
    """The key's newest value; empty where there is none. It does not wait."""
    return bytes(store.get(key)) if store.check([key]) else b""


def becomes(holds: Callable[[], bool], deadline: float, given_up: GivenUp) -> bool:
    """Does it hold before the deadline (of time.monotonic())? Polls at least once; ends early once given up."""
    pause_s = PAUSE_S
    while not holds():
        left = deadline - time.monotonic()
        if left <= 0 or given_up.is_set():
            return False
        time.sleep(min(pause_s, left))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True
