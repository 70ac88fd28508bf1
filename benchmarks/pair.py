# SPDX-License-Identifier: MIT
"""Rank processes, brought together over connections and made to carry one load: one reading of the track. Two of them,
or more, each with each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conversation import first_line
from network import Hosts
from processes import RankProcess, Seat, place, together
from rank import RankSpec
from reading import Reading, of_replies

_RANK = Path(__file__).with_name("rank.py")
_SETUP_S = 60.0


def _load_time_s(spec: RankSpec) -> float:
    """Seconds after which a load has certainly failed. What these figures say is slower than anything measured here."""
    if spec.work == "pingpong":
        return 30 + (spec.warm_up_rounds + spec.rounds) * (0.001 + 2 * spec.size / 50e6)
    backlog = 2 * spec.lanes * spec.inflight * spec.size
    return 30 + spec.warm_up_s + spec.window_s + backlog / 1e6


def route(handles: Sequence[bytes]) -> list[bytes]:
    """What each rank connects to, out of the handles at which each one listens.

    A rank has a block of as many lanes for each peer. In block k it sends to the rank k + 1 places further and receives
    from the one k + 1 places back.
    """
    ranks = len(handles)
    block = len(handles[0]) // (ranks - 1)
    return [
        b"".join(handles[(rank + 1 + k) % ranks][k * block : (k + 1) * block] for k in range(ranks - 1))
        for rank in range(ranks)
    ]


def _all(ranks: Sequence[RankProcess], lines: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """Tells each rank its line, then hears all of them."""
    for rank, line in zip(ranks, lines, strict=True):
        rank.tell(line)
    return [rank.hear(timeout_s) for rank in ranks]


def _converse(ranks: Sequence[RankProcess], specs: Sequence[RankSpec]) -> list[dict[str, Any]]:
    replies = _all(ranks, [first_line(spec) for spec in specs], _SETUP_S)
    peers = route([bytes.fromhex(reply["handles"]) for reply in replies])
    _all(ranks, [json.dumps(row.hex()) + "\n" for row in peers], _SETUP_S)
    replies = _all(ranks, ["go\n"] * len(ranks), _load_time_s(specs[0]))
    _all(ranks, ["close\n"] * len(ranks), _SETUP_S)
    return replies


def measure(spec: RankSpec, hosts: Hosts, settings: Mapping[str, str]) -> Reading:
    """Runs one load between fresh processes. ``spec`` is rank 0's; ``settings`` go into their environment.

    Returns:
        The figure that :data:`scenarios.WORKS` names, the mean over ranks; of a ping-pong the first rank's median.

    Raises:
        RankFailed: a rank failed. All have ended when this returns or raises.
    """
    places = place(hosts, spec.ranks)
    specs = [replace(spec, rank=number, address=host.address) for number, host in enumerate(places)]
    with together(_RANK, [Seat(number, host, settings) for number, host in enumerate(places)]) as ranks:
        return of_replies(spec.work, _converse(ranks, specs), spec.lanes)
