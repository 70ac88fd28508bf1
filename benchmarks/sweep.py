# SPDX-License-Identifier: MIT
"""An allreduce of several sizes, one after another, in the same rank processes: a block of the track's cells, of one
side, or of several that take turns round by round.

The work is that of ``bagua-net bench``: the same ranks, the same collectives over either net table, every result
checked, time per call of the slowest rank, bus bandwidth as nccl-tests counts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conversation import first_line
from member import MemberSpec
from network import Hosts
from processes import RankFailed, RankProcess, Seat, place, together
from reading import Reading

from bagua_net._bench.workload.result import Row

_MEMBER = Path(__file__).with_name("member.py")
_SETUP_S = 120.0  # torch takes its time to load


@dataclass(frozen=True)
class SweepSpec:
    """One side's part in a block."""

    member: MemberSpec
    """Rank 0's, as if it were alone."""
    slowest_gbs: float
    """Bus bandwidth below which a collective has certainly failed."""


Part = tuple[SweepSpec, Mapping[str, str]]
"""A side's part, and the environment variables of its processes."""


def _reading(row: Row) -> Reading:
    if row.wrong:
        raise RankFailed(f"{row.wrong} elements are wrong after an allreduce of {row.size} bytes over {row.transport}")
    details = {
        "us": row.seconds * 1e6,
        "processor_us": row.processor_seconds * 1e6,
        "iterations": float(row.iters),
    }
    return Reading(row.busbw, [], details)


def _patience_s(parts: Sequence[Part], size: int) -> float:
    spec, _ = parts[0]
    member = spec.member
    calls = len(parts) * (member.rounds + 4)
    return _SETUP_S + 10 * member.seconds + calls * (0.5 + 2 * size / (spec.slowest_gbs * 1e9))


def _rows(first: RankProcess, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """What the first rank reports, one row per size and transport."""
    rows = []
    for size in parts[0][0].member.sizes:
        event = first.hear(_patience_s(parts, size))
        while event["event"] != "rows":
            event = first.hear(_patience_s(parts, size))
        rows += event["rows"]
    return rows


def sweep(parts: Sequence[Part], hosts: Hosts) -> list[list[Reading]]:
    """One allreduce after the other between fresh processes, by one side or by several in turn.

    Returns:
        For each part a reading per size: GB/s of bus bandwidth, with the time of a call and what it takes of the
        processor, in µs.

    Raises:
        RankFailed: a rank failed, or a result was wrong. All have ended when this returns or raises.
    """
    first, _ = parts[0]
    places = place(hosts, first.member.ranks)
    transports = tuple(spec.member.transport for spec, _ in parts)
    token = first.member.token
    members = [
        replace(spec.member, rank=number, address=host.address, transports=transports, token=token)
        for spec, _ in parts
        for number, host in enumerate(places)
    ]
    seats = [Seat(number, host, settings) for _, settings in parts for number, host in enumerate(places)]
    with together(_MEMBER, seats) as ranks:
        for rank, member in zip(ranks, members, strict=True):
            rank.tell(first_line(member))
        port = ranks[0].hear(_SETUP_S)["port"]
        for rank in ranks:
            rank.tell(json.dumps({"host": places[0].address, "port": port}) + "\n")
        rows = [Row(**row) for row in _rows(ranks[0], parts)]
        for rank in ranks:
            while rank.hear(_SETUP_S).get("event") != "end":
                pass
    return [[_reading(row) for row in rows if row.transport == name] for name in transports]
