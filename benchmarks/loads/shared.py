# SPDX-License-Identifier: MIT
"""One reading of several pairs of processes that share a bottleneck: what they carry together, and at what cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks.loads.load import measure
from benchmarks.loads.rank import RankSpec
from benchmarks.loads.reading import Reading
from benchmarks.networks.shared import Shared

_POLL_S = 0.2


class _Watch:
    """Counts the streams while the pairs run: so long from the first one on."""

    def __init__(self, shared: Shared, until_s: float) -> None:
        self._shared, self._until_s = shared, until_s
        self._end: float | None = None
        self._over = threading.Event()
        self.most = self.last = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            streams = self._shared.streams()
            now = time.monotonic()
            self.most = max(self.most, streams)
            if streams and self._end is None:
                self._end = now + self._until_s
            # On a busy machine the pairs may be gone before the window is over here.
            if streams and self._end is not None and now < self._end:
                self.last = streams

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure_shared(spec: RankSpec, shared: Shared, settings: Mapping[str, str], both_ways: bool) -> Reading:
    """Runs the load between each pair at once.

    Args:
        both_ways: both directions pass the bottleneck; else only what the second host of each pair receives.

    Returns:
        GB/s of one direction of the bottleneck. Details: ``dropped`` packets, ``streams`` of a connection at the end
        of the window (a mean), ``most_streams`` (of all connections together), and ``slowest`` and ``fastest`` pair
        in GB/s.

    Raises:
        RankFailed: a rank failed.
    """
    connections = 2 * len(shared.pairs) * spec.lanes
    before = shared.dropped()
    with _Watch(shared, spec.warm_up_s + spec.window_s) as watch, ThreadPoolExecutor(len(shared.pairs)) as pool:
        readings = list(pool.map(lambda pair: measure(spec, pair, settings), shared.pairs))
    rates = [sum(one.per_rank) / 2 if both_ways else one.per_rank[1] for one in readings]
    details = {
        "dropped": float(shared.dropped() - before),
        "streams": watch.last / connections,
        "most_streams": float(watch.most),
        "slowest": min(rates),
        "fastest": max(rates),
    }
    return Reading(sum(rates), [sum(rates)], details)
