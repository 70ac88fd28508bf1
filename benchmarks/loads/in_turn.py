# SPDX-License-Identifier: MIT
"""Ranks that send messages without a pause, each to the next one, the last one to the first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import RankProcess
from benchmarks.loads.rank import RankSpec

MODULE = "benchmarks.loads.rank"
_SETUP_S = 60.0


def spec(
    rank: int,
    arguments: argparse.Namespace,
    plugin: Path,
    seconds: float,
    *,
    nap_us: int = 0,
    coupled: bool = False,
) -> RankSpec:
    """
    Args:
        arguments: ``build``, the build folder of benchmarks/; ``size``, bytes of a message; ``inflight``, messages that
            are under way.
        nap_us: a pause after a look that finds nothing.
        coupled: a message is sent only once one has come.
    """
    return RankSpec(
        rank=rank,
        ranks=2,
        devices=1,
        nap_us=nap_us,
        kind="ours",
        loops=str(arguments.build / "libtraffic.so"),
        library=str(plugin),
        table={},
        address="",
        sndbuf=0,
        work="stream",
        lanes=1,
        inflight=arguments.inflight,
        size=arguments.size,
        warm_up_s=0.0,
        window_s=seconds,
        warm_up_rounds=0,
        rounds=0,
        connect_timeout_s=_SETUP_S,
        together=1,
        coupled=coupled,
    )


def begin(ranks: Sequence[RankProcess], specs: Sequence[RankSpec]) -> list[str]:
    """Connects them, and lets them send. The handles of what they listen on, in hexadecimal digits."""
    for rank, each in zip(ranks, specs, strict=True):
        rank.send(encode(each))
    handles = [str(rank.receive(_SETUP_S)["handles"]) for rank in ranks]
    for rank, handle in zip(ranks, [*handles[1:], handles[0]], strict=True):
        rank.send(json.dumps(handle) + "\n")
    for rank in ranks:
        rank.receive(_SETUP_S)
    for rank in ranks:
        rank.send("go\n")
    return handles
