# SPDX-License-Identifier: MIT
"""The file of windows, and the table that is made of it.

The first line describes the run; each further line is a window: its pair, MB/s that the first host sent, headers
included, and the connections that strangers opened in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.report.jsonl import Reading


def line(window: Reading) -> str:
    """For the terminal."""
    return f"pair {window['pair']}: {window['mb_per_s']} MB/s, {window['strangers_per_s']} strangers a second"


def _pairs(windows: Sequence[Reading]) -> list[tuple[Reading, Reading]]:
    """(Without strangers, with them.)"""
    by_pair: dict[int, list[Reading]] = {}
    for window in windows:
        by_pair.setdefault(window["pair"], []).append(window)
    pairs = (sorted(both, key=lambda each: bool(each["strangers_per_s"])) for both in by_pair.values())
    return [(without, beside) for without, beside in pairs]


def ratios(windows: Sequence[Reading]) -> list[float]:
    """Of each pair: the rate beside strangers, over that without."""
    return [beside["mb_per_s"] / without["mb_per_s"] for without, beside in _pairs(windows)]


def render(head: dict[str, Any], windows: Sequence[Reading]) -> str:
    rows = [["pair", "MB/s without", "MB/s beside strangers", "ratio", "strangers a second"], ["---:"] * 5]
    every = ratios(windows)
    for (without, beside), ratio in zip(_pairs(windows), every, strict=True):
        figures = [f"{without['mb_per_s']:.1f}", f"{beside['mb_per_s']:.1f}", f"{ratio:.3f}"]
        rows.append([str(without["pair"]), *figures, str(beside["strangers_per_s"])])
    settings = head["settings"]
    what = "with proofs alone" if settings["plain"] else "encrypted"
    text = [
        f"# Strangers at the listener, {head['started'][:10]}",
        "",
        f"`{head['command']}`",
        "",
        f"Two hosts with cards of {settings['mbits']:g} Mbit/s and a secret send {settings['inflight']} messages of "
        f"{settings['size']} bytes at a time to each other, {what}, over {settings['streams']} streams. A third one "
        f"opens {settings['rate']} connections a second to the listener of the second one, or as many as it can, and "
        "says on each what no rank says. The rate is what the first host sends, headers included.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"Ratio: median {median(every):.3f}, {min(every):.3f} to {max(every):.3f}.",
    ]
    return "\n".join(text) + "\n"
