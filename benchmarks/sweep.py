# SPDX-License-Identifier: MIT
"""An allreduce of several sizes, one after another, in the same rank processes: a block of the track's cells.

The work is that of ``bagua-net bench``: the same ranks, the same collectives over either net table, every result
checked, time per call of the slowest rank, bus bandwidth as nccl-tests counts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conversation import first_line
from member import MemberSpec
from network import Hosts
from processes import RankFailed, RankProcess, place, together
from reading import Reading

from bagua_net._bench.result import Row

_MEMBER = Path(__file__).with_name("member.py")
_SETUP_S = 120.0  # torch takes its time to load


@dataclass(frozen=True)
class SweepSpec:
    """One side's part in a block."""

    member: MemberSpec
    """Rank 0's."""
    slowest_gbs: float
    """Bus bandwidth below which a collective has certainly failed."""


def _reading(row: Row) -> Reading:
    if row.wrong:
        raise RankFailed(f"{row.wrong} elements are wrong after an allreduce of {row.size} bytes over {row.transport}")
    details = {
        "us": row.seconds * 1e6,
        "processor_us": row.processor_seconds * 1e6,
        "iterations": float(row.iters),
    }
    return Reading(row.busbw, [], details)


def _patience_s(spec: SweepSpec, size: int) -> float:
    member = spec.member
    return _SETUP_S + 10 * member.seconds + (member.rounds + 4) * (0.5 + 2 * size / (spec.slowest_gbs * 1e9))


def _rows(first: RankProcess, spec: SweepSpec) -> list[dict[str, Any]]:
    """What rank 0 reports, one row per size."""
    rows = []
    for size in spec.member.sizes:
        event = first.hear(_patience_s(spec, size))
        while event["event"] != "rows":
            event = first.hear(_patience_s(spec, size))
        rows += event["rows"]
    return rows


def sweep(spec: SweepSpec, hosts: Hosts, settings: Mapping[str, str]) -> list[Reading]:
    """One allreduce after the other between fresh processes; ``settings`` go into their environment.

    Returns:
        A reading per size: GB/s of bus bandwidth, with the time of a call and what it takes of the processor, in µs.

    Raises:
        RankFailed: a rank failed, or a result was wrong. All have ended when this returns or raises.
    """
    places = place(hosts, spec.member.ranks)
    with together(_MEMBER, places, settings) as ranks:
        for number, (rank, host) in enumerate(zip(ranks, places, strict=True)):
            rank.tell(first_line(replace(spec.member, rank=number, address=host.address)))
        port = ranks[0].hear(_SETUP_S)["port"]
        for rank in ranks:
            rank.tell(json.dumps({"host": places[0].address, "port": port}) + "\n")
        rows = _rows(ranks[0], spec)
        for rank in ranks:
            while rank.hear(_SETUP_S).get("event") != "end":
                pass
    return [_reading(Row(**row)) for row in rows]
