# SPDX-License-Identifier: MIT
"""The file of readings, and the table that is made of it.

The first line describes the run; each further line is a ring: what its first host sends in each second.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.report.jsonl import Reading

REFERENCE = "16 streams from the start"
#: Full rate, as a share of what the reference carries in its second half.
_FULL = 0.9


def line(reading: Reading) -> str:
    """For the terminal."""
    rates = reading["mb_per_s"]
    return (
        f"{reading['hosts']} hosts, {reading['side']}: {median(rates[len(rates) // 2 :]):.2f} MB/s in the second half"
    )


def _steady(rates: Sequence[float]) -> float:
    return median(rates[len(rates) // 2 :])


def full_after(rates: Sequence[float], full: float) -> int | None:
    """Seconds until the first of two in a row in which ``full`` is reached; None: never."""
    for number in range(len(rates) - 1):
        if min(rates[number], rates[number + 1]) >= full:
            return number
    return None


def _row(reading: Reading, reference: float) -> list[str]:
    rates = reading["mb_per_s"]
    after = full_after(rates, _FULL * reference)
    below = sum(rate < _FULL * reference for rate in rates[after or 0 :])
    figures = [f"{_steady(rates):.2f}", f"{100 * _steady(rates) / reference:.0f} %"]
    return [str(reading["hosts"]), reading["side"], *figures, "never" if after is None else f"{after}", f"{below}"]


def _around(reading: Reading, slow: Sequence[int]) -> list[str]:
    """Medians before, while and after a host is slow, and the seconds until all have nine tenths of the first again."""
    first, last = slow
    rates = reading["mb_per_s"]
    before, during = median(rates[first // 2 : first]), median(rates[first:last])
    again = full_after(rates[last:], _FULL * before)
    figures = [f"{rate:.2f}" for rate in (before, during, median(rates[last:]))]
    return [str(reading["hosts"]), reading["side"], *figures, "never" if again is None else f"{again}"]


def _slow_host(settings: Reading, readings: Sequence[Reading]) -> list[str]:
    if "slow" not in settings:
        return []
    first, last = settings["slow"]
    rows = [
        ["hosts", "streams", "before", "slow", "after", "at nine tenths again after, s"],
        ["---"] * 6,
        *(_around(each, settings["slow"]) for each in readings),
    ]
    text = f"From second {first} to {last} the last host sends at half its rate. MB/s, medians:"
    return ["", text, "", *("| " + " | ".join(row) + " |" for row in rows)]


def render(head: Reading, readings: Sequence[Reading]) -> str:
    cell = ("hosts", "pair")
    reference = {
        tuple(each[name] for name in cell): _steady(each["mb_per_s"]) for each in readings if each["side"] == REFERENCE
    }
    settings = head["settings"]
    rows = [
        ["hosts", "streams", "MB/s", "of the reference", "at nine tenths of it after, s", "seconds below it then"],
        ["---"] * 6,
        *(_row(each, reference[tuple(each[name] for name in cell)]) for each in readings),
    ]
    text = [
        f"# Rings of hosts, {head['started'][:10]}",
        "",
        f"`{head['command']}`",
        "",
        f"Each host passes on what has come: {settings['inflight']} messages of {settings['size']} bytes at a time. A "
        f"flow carries at most {settings['flow_mbits']:g} Mbit/s, a host {settings['host_mbits']:g}. The rate is that "
        "of the first host's interface in each second, in the second half a median. "
        f'"{REFERENCE}" is the reference, on the same hosts.',
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
        *_slow_host(settings, readings),
    ]
    return "\n".join(text) + "\n"
