# SPDX-License-Identifier: MIT
"""A collective of several sizes, one after another, in the same rank processes: a block of the track's cells, for one
side, or for several that take turns round by round.

The work is that of ``bagua-net bench``: the same ranks, the same collectives over either net table, every result
checked, the time per call of the slowest rank, bus bandwidth as nccl-tests counts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bagua_net._bench.workload.result import Row
from benchmarks.loads.collective_rank import CollectiveRankSpec
from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import Placement, RankFailed, RankProcess, place, running
from benchmarks.loads.reading import Reading
from benchmarks.networks.namespaces import Hosts

_RANK = "benchmarks.loads.collective_rank"
_SETUP_S = 120.0  # importing torch is slow


@dataclass(frozen=True)
class CollectiveSpec:
    """One side's part in a block."""

    rank: CollectiveRankSpec
    """That of rank 0, for this side alone."""
    slowest_gbs: float
    """Bus bandwidth below which a collective has certainly failed."""


Part = tuple[CollectiveSpec, Mapping[str, str]]
"""A side's part, and the environment variables of its processes."""


def _reading(row: Row) -> Reading:
    if row.wrong:
        raise RankFailed(f"{row.wrong} elements are wrong after {row.op} of {row.size} bytes over {row.transport}")
    details = {
        "us": row.seconds * 1e6,
        "processor_us": row.processor_seconds * 1e6,
        "iterations": float(row.iters),
    }
    return Reading(row.busbw, [], details)


def _patience_s(parts: Sequence[Part], size: int) -> float:
    spec, _ = parts[0]
    rank = spec.rank
    calls = len(parts) * (rank.rounds + 4)
    return _SETUP_S + 10 * rank.seconds + calls * (0.5 + 2 * size / (spec.slowest_gbs * 1e9))


def _rows(first: RankProcess, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The first rank's report: one row per size and transport."""
    rows = []
    for size in parts[0][0].rank.sizes:
        event = first.receive(_patience_s(parts, size))
        while event["event"] != "rows":
            event = first.receive(_patience_s(parts, size))
        rows += event["rows"]
    return rows


def collective_rows(parts: Sequence[Part], hosts: Hosts) -> list[Row]:
    """Runs one collective after the other between new processes, for one side or for several in turn.

    Returns:
        A row per size and side, with the figures of every round.

    Raises:
        RankFailed: a rank failed. All have ended when this returns or raises.
    """
    first, _ = parts[0]
    places = place(hosts, first.rank.ranks)
    transports = tuple(spec.rank.transport for spec, _ in parts)
    token = first.rank.token
    specs = [
        replace(spec.rank, rank=number, address=host.address, transports=transports, token=token)
        for spec, _ in parts
        for number, host in enumerate(places)
    ]
    placements = [Placement(number, host, settings) for _, settings in parts for number, host in enumerate(places)]
    with running(_RANK, placements) as ranks:
        for rank, spec in zip(ranks, specs, strict=True):
            rank.send(encode(spec))
        port = ranks[0].receive(_SETUP_S)["port"]
        for rank in ranks:
            rank.send(json.dumps({"host": places[0].address, "port": port}) + "\n")
        rows = [Row(**row) for row in _rows(ranks[0], parts)]
        for rank in ranks:
            while rank.receive(_SETUP_S).get("event") != "end":
                pass
    return rows


def measure_collective(parts: Sequence[Part], hosts: Hosts) -> list[list[Reading]]:
    """The same in readings.

    Returns:
        For each part a reading per size: GB/s of bus bandwidth, with the time and the processor time of a call,
        in µs.

    Raises:
        RankFailed: a rank failed, or a result was wrong. All have ended when this returns or raises.
    """
    rows = collective_rows(parts, hosts)
    return [[_reading(row) for row in rows if row.transport == spec.rank.transport] for spec, _ in parts]
