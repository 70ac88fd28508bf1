# SPDX-License-Identifier: MIT
"""Waiting for a key that another rank puts into torch's store.

All groups of a process share one connection to the store, and the store's own wait occupies it: other threads could not
publish the keys that the peers wait for. So this wait polls, and leaves the connection to others in between.
"""

from __future__ import annotations

import time
from typing import Any

#: Seconds between two polls: the first pause, and the longest.
_PAUSE_S = 0.001
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


def appears(store: Any, key: str, deadline: float, given_up: GivenUp) -> bool:
    """Does the key exist before the deadline (of time.monotonic())? Polls at least once; ends early once given up.

    Raises:
        DistNetworkError: the store cannot be reached.
    """
    pause_s = _PAUSE_S
    while not store.check([key]):
        left = deadline - time.monotonic()
        if left <= 0 or given_up.is_set():
            return False
        time.sleep(min(pause_s, left))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True
