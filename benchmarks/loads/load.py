# SPDX-License-Identifier: MIT
"""One reading of the track: two or more rank processes, connected each with each, carry one load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.loads.ipc import encode
from benchmarks.loads.processes import Placement, RankProcess, place, running
from benchmarks.loads.rank import RankSpec
from benchmarks.loads.reading import Reading, of_replies
from benchmarks.networks.namespaces import Hosts

_RANK = "benchmarks.loads.rank"
_SETUP_S = 60.0


def _load_time_s(spec: RankSpec) -> float:
    """Seconds after which a load has certainly failed: the rates below are lower than anything measured here."""
    if spec.work == "pingpong":
        return 30 + (spec.warm_up_rounds + spec.rounds) * (0.001 + 2 * spec.size / 50e6)
    backlog = 2 * spec.lanes * spec.inflight * spec.size
    return 30 + spec.warm_up_s + spec.window_s + backlog / 1e6


def route(handles: Sequence[bytes]) -> list[bytes]:
    """The handles that each rank connects to, taken from the handles that every rank listens on.

    Each rank has one block of lanes per peer, all of the same length. In block k it sends to rank + k + 1 and receives
    from rank - k - 1.
    """
    ranks = len(handles)
    block = len(handles[0]) // (ranks - 1)
    return [
        b"".join(handles[(rank + 1 + k) % ranks][k * block : (k + 1) * block] for k in range(ranks - 1))
        for rank in range(ranks)
    ]


def _all(ranks: Sequence[RankProcess], lines: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """Sends each rank its line, then waits for all answers."""
    for rank, line in zip(ranks, lines, strict=True):
        rank.send(line)
    return [rank.receive(timeout_s) for rank in ranks]


def _run(ranks: Sequence[RankProcess], specs: Sequence[RankSpec]) -> list[dict[str, Any]]:
    replies = _all(ranks, [encode(spec) for spec in specs], _SETUP_S)
    peers = route([bytes.fromhex(reply["handles"]) for reply in replies])
    _all(ranks, [json.dumps(row.hex()) + "\n" for row in peers], _SETUP_S)
    replies = _all(ranks, ["go\n"] * len(ranks), _load_time_s(specs[0]))
    ends = _all(ranks, ["close\n"] * len(ranks), _SETUP_S)
    return [{**reply, **end} for reply, end in zip(replies, ends, strict=True)]


def measure(spec: RankSpec, hosts: Hosts, settings: Mapping[str, str]) -> Reading:
    """Runs one load between new processes. ``spec`` is that of rank 0; ``settings`` go into the environment of all.

    Returns:
        The figure that :data:`scenarios.WORKS` names: the mean over the ranks; of a ping-pong the first rank's median.

    Raises:
        RankFailed: a rank failed. All have ended when this returns or raises.
    """
    places = place(hosts, spec.ranks)
    specs = [replace(spec, rank=number, address=host.address) for number, host in enumerate(places)]
    with running(_RANK, [Placement(number, host, settings) for number, host in enumerate(places)]) as ranks:
        return of_replies(spec.work, _run(ranks, specs), spec.lanes)
