# SPDX-License-Identifier: MIT
"""Waiting for what other ranks put into torch's store.

The store's own wait keeps the connection to itself for as long as it lasts, and all of a process's groups share one:
other threads could not even say what the waiting rank's peers wait for. So we look, and let others have it in between.
"""

from __future__ import annotations

import threading
import time
from typing import Any

#: Seconds between two looks, at first and at last.
_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def appears(store: Any, key: str, deadline: float, given_up: threading.Event) -> bool:
    """Is it there before the deadline, of time.monotonic()? Looks once in any case, and no more once given up.

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
