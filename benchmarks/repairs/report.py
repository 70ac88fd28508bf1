# SPDX-License-Identifier: MIT
"""The file of readings, and the table that is made of it.

The first line describes the run. Each further line is one time that streams were reset: MB/s in each 10 ms, from a
second before that on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from benchmarks.report.jsonl import Reading

#: Seconds of a reading before the reset, and after it.
BEFORE_S, AFTER_S = 1.0, 2.0
BIN_S = 0.01
#: Full rate, as a share of the median of the second before, and over how many bins it is taken.
FULL = 0.95
_SMOOTH = 5


def bins(samples: Sequence[tuple[float, int]], reset_at: float) -> list[float]:
    """MB/s in each :data:`BIN_S` around the reset, of samples of (seconds, bytes so far)."""
    edges = [reset_at - BEFORE_S + number * BIN_S for number in range(round((BEFORE_S + AFTER_S) / BIN_S) + 1)]
    sent, at = [], 0
    for edge in edges:
        while at + 2 < len(samples) and samples[at + 1][0] < edge:
            at += 1
        (t0, b0), (t1, b1) = samples[at], samples[at + 1]
        sent.append(b0 + (b1 - b0) * (edge - t0) / (t1 - t0))
    return [round((after - before) / BIN_S / 1e6, 1) for before, after in itertools.pairwise(sent)]


def _parts(rates: Sequence[float]) -> tuple[list[float], list[float]]:
    first = round(BEFORE_S / BIN_S)
    return list(rates[:first]), list(rates[first:])


def full_after_ms(rates: Sequence[float]) -> float:
    """Until the first bin from which on, over :data:`_SMOOTH` bins, the rate is :data:`FULL` of that before."""
    before, after = _parts(rates)
    full = FULL * median(before)
    for number in range(len(after) - _SMOOTH + 1):
        if sum(after[number : number + _SMOOTH]) / _SMOOTH >= full:
            return number * BIN_S * 1000
    return float("inf")


def lost_ms(rates: Sequence[float]) -> float:
    """What was not sent in the second after the reset, as time at the rate before it. Below zero: a queue was sent."""
    before, after = _parts(rates)
    usual, second = median(before), after[: round(1 / BIN_S)]
    return (1 - sum(second) / len(second) / usual) * 1000


def line(reading: Reading) -> str:
    """For the terminal."""
    rates = reading["mb_per_s"]
    return (
        f"{reading['streams']} streams, {reading['reset']} reset: full rate after {full_after_ms(rates):.0f} ms, "
        f"{lost_ms(rates):.0f} ms lost"
    )


def _ms(value: float) -> str:
    return f"{value:.0f}" if value < float("inf") else "not in two seconds"


def _row(streams: int, reset: int, readings: Sequence[Reading]) -> list[str]:
    after = sorted(full_after_ms(each["mb_per_s"]) for each in readings)
    lost = sorted(lost_ms(each["mb_per_s"]) for each in readings)
    rate = median(median(_parts(each["mb_per_s"])[0]) for each in readings)
    figures = [_ms(median(after)), _ms(after[-1]), f"{median(lost):.0f}", f"{lost[-1]:.0f}"]
    return [str(streams), str(reset), f"{rate:.0f}", *figures, str(len(readings))]


def render(head: Reading, readings: Sequence[Reading]) -> str:
    cells = dict.fromkeys((each["streams"], each["reset"]) for each in readings)
    rows = [
        ["streams", "reset at a time", "MB/s before", "full rate after, ms", "at most", "lost, ms", "at most", "times"],
        ["---"] * 8,
        *(_row(*cell, [each for each in readings if (each["streams"], each["reset"]) == cell]) for cell in cells),
    ]
    settings = head["settings"]
    text = [
        f"# Streams that are reset, {head['started'][:10]}",
        "",
        f"`{head['command']}`",
        "",
        f"Two hosts send {settings['inflight']} messages of {settings['size']} bytes at a time to each other, over "
        f"flows of at most {settings['flow_mbits']:g} Mbit/s each. The second host's firewall resets streams of the "
        f"first one. Full rate: {FULL:.0%} of the median in the second before, over "
        f"{_SMOOTH * BIN_S * 1000:.0f} ms. Lost: what was not sent in the second after, as time at that rate. "
        "Medians, and the largest.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(text) + "\n"
