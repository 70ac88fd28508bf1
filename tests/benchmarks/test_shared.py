# SPDX-License-Identifier: MIT
"""S10: a bottleneck limits all of its pairs together, wherever it is. Run: pytest benchmarks"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.networks import namespaces, shared
from benchmarks.run import sides
from benchmarks.run.effort import QUICK
from benchmarks.run.scenarios import Cell
from tests.benchmarks.support import needs_namespaces

PAIRS = 2
MBIT = 100
#: Messages small enough that a window holds many of them.
CELL = Cell("S10", "shared", 1, 64 << 10, congestion="cubic", pairs=PAIRS, shared_mbits=MBIT)


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.parametrize("classes", [(), (20, 20)], ids=["one rate", "classes"])
@pytest.mark.parametrize("place", shared.PLACES)
def test_pairs_share_what_the_bottleneck_carries(
    place: str, classes: tuple[int, ...], loops: Path, plugin: Path, tmp_path: Path
) -> None:
    cell = replace(CELL, place=place, fair=not classes, classes_mbits=classes)
    effort = replace(QUICK, shared_warm_up_s=1.0, shared_window_s=2.0)
    files = sides.Files(loops, plugin, None, tmp_path)
    (side,) = sides.candidates([cell], "one stream", effort, files, {})
    with shared.PLACES[place](PAIRS, MBIT, not classes, classes, "cubic") as bottleneck:
        shared.hash_flows(bottleneck, not classes, len(classes), 1)
        ((reading,),) = sides.read([side], bottleneck)
    limit = namespaces.capacity(cell.rates_mbits)
    # A class that no flow has met carries nothing, and a flow that meets losses pauses. On a busy machine the pairs'
    # windows do not begin together, and more than the limit fits into them. Without the bottleneck it would be 100 ×.
    assert limit * 0.1 < reading.value < limit * 2
    assert 0 < reading.details["streams"] <= 1, "of each connection; one pair may be done before the other"
    assert reading.details["slowest"] + reading.details["fastest"] == pytest.approx(reading.value)


@needs_namespaces
def test_drops_are_counted() -> None:
    with shared.at_sender(1, 1, False, (), "cubic") as bottleneck:
        assert bottleneck.dropped() == 0
        sender, receiver = bottleneck.pairs[0]
        # One socket's buffer holds less than the queue.
        flood = (
            "import socket\n"
            "for s in [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(20)]:\n"
            f"    for _ in range(80): s.sendto(bytes(1000), ('{receiver.address}', 9))"
        )
        namespaces.run(["ip", "netns", "exec", sender.namespace, "python3", "-c", flood])
        assert bottleneck.dropped() > 500, "a third of them fits"
