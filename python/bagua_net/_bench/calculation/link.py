# SPDX-License-Identifier: MIT
"""The link that each rank of a calculation has: of a rate that the user names, or that an earlier run has measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..output.difference import NotComparable, Run

#: Of what a link carries, the part that is TCP's payload. Packets of 1500 bytes have the headers of IPv4 (20) and TCP
#: (20, and 12 of timestamps), and around them Ethernet's header and check (18), preamble (8) and gap (12).
PAYLOAD = (1500 - 52) / (1500 + 38)
#: Seconds from a rank to the next one, where the user names none: a step around a ring over a network in NCCL's model
#: (``hwLatencies`` in its src/graph/tuning.cc, protocol Simple).
LATENCY_S = 14e-6

#: Whose rows of ``bagua-net bench`` are this network's, without compression.
_OURS = ("bagua", "nccl+bagua", "torch+bagua")


@dataclass(frozen=True)
class Link:
    bytes_per_s: float
    """Of payload."""
    latency_s: float
    source: str
    """What the rate is, in words."""


def named(bits_per_s: float, latency_s: float) -> Link:
    """A link that carries so much in all."""
    payload = f"{PAYLOAD:.1%} of it are payload, of TCP over IPv4 in packets of 1500 bytes"
    return Link(bits_per_s / 8 * PAYLOAD, latency_s, f"{bits_per_s / 1e9:g} Gbit/s; {payload}")


def measured(path: Path, latency_s: float) -> Link:
    """The link of a file: of ``bagua-net bench --json`` our highest bus bandwidth; of ``bagua-net doctor --peers …
    --json`` the rate between the two hosts where the best number of flows carries least.

    Raises:
        NotComparable: the file has no such rate.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NotComparable(f"{path}: no file of `bagua-net bench --json` or `doctor --peers … --json`") from error
    rate, what = _of_findings(path, content) if isinstance(content, list) else _of_bench(path)
    return Link(rate, latency_s, f"{rate * 8 / 1e9:.3g} Gbit/s of payload, measured: {what} ({path})")


def _of_findings(path: Path, findings: list[Any]) -> tuple[float, str]:
    objects = [each for each in findings if isinstance(each, dict)]
    rates = [
        (float(each["bytes_per_second"]), str(each.get("name", "a finding")))
        for each in objects
        if isinstance(each.get("bytes_per_second"), (int, float)) and 0 < each["bytes_per_second"] < math.inf
    ]
    if not rates:
        raise NotComparable(f"{path}: no rate between hosts; `bagua-net doctor --peers HOST,… --json` measures them")
    return min(rates)


def _of_bench(path: Path) -> tuple[float, str]:
    run = Run.load(path)
    ours = [row for row in run.rows if row.transport in _OURS]
    if not ours:
        raise NotComparable(f"{path}: no row of {' or '.join(_OURS)}")
    best = max(ours, key=lambda row: row.busbw)
    if not 0 < best.busbw < math.inf:
        raise NotComparable(f"{path}: no bus bandwidth above 0")
    return best.busbw * 1e9, f"the best size of {best.transport} {run.record['where']}"
