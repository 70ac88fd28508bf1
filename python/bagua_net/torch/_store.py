# SPDX-License-Identifier: MIT
"""Waiting for a key that another rank puts into torch's store.

All groups of a process share one connection to the store, and the store's own wait occupies it: other threads could not
publish the keys that the peers wait for. So this wait polls, and leaves the connection to others in between.
"""

from __future__ import annotations

import threading
import time
from typing import Any

#: Seconds between two polls: the first pause, and the longest.
_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def appears(store: Any, key: str, deadline: float, given_up: threading.Event) -> bool:
    """Does the key exist before the deadline (of time.monotonic())? Polls at least once; ends early once given up.

    Raises:
        DistNetworkError: the store cannot be reached.
    """
    pause_s = _PAUSE_S
    while not store.check([key]):
        left = deadline - time.monotonic()
        if left <= 0 or given_up.wait(min(pause_s, left)):
            return False
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True
