# SPDX-License-Identifier: MIT
"""What an interface has sent, some hundred times a second: ``python3 -m benchmarks.repairs.sampler INTERFACE``, in its
namespace. A line each: seconds of the monotonic clock, bytes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

INTERVAL_S = 0.005


def _main(interface: str) -> None:
    with Path(f"/sys/class/net/{interface}/statistics/tx_bytes").open() as counter:
        due = time.monotonic()
        while True:
            counter.seek(0)
            print(f"{time.monotonic():.6f} {counter.read().strip()}", flush=True)
            due = max(due + INTERVAL_S, time.monotonic())
            time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


if __name__ == "__main__":
    _main(sys.argv[1])
