# SPDX-License-Identifier: MIT
"""Readings computed from the counts of the ranks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

Reply = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """One measured value."""

    value: float
    """What the tables show."""
    per_rank: list[float]
    """The value of each rank; empty where only all ranks together have one."""
    details: dict[str, float] = field(default_factory=dict)
    """Further figures, by name."""


def _rate(reply: Reply) -> float:
    """GB/s."""
    return float(reply["bytes"]) / float(reply["seconds"]) / 1e9


def _received(reply: Reply) -> float:
    """GB."""
    return float(reply["bytes"]) / 1e9


def _cost(reply: Reply) -> float:
    """Processor seconds of the transport per GB received: the system time of the process, and the user time of its
    threads without the driving one, which polls without end over any transport."""
    used = reply["used"]
    return float(used["system"] + used["user"] - used["driver_user"]) / _received(reply)


def _everything(reply: Reply) -> float:
    """Processor seconds of the process per GB received, including the driving thread's polling."""
    return float(reply["used"]["user"] + reply["used"]["system"]) / _received(reply)


def _wakes(reply: Reply) -> float:
    """Wake-ups per second."""
    return float(reply["used"]["switches"]) / float(reply["seconds"])


def _resources(replies: Sequence[Reply]) -> dict[str, float]:
    """The maximum over the processes."""
    return {name: max(reply[name] for reply in replies) for name in ("threads", "descriptors", "memory_mib", "devices")}


def _of_stream(replies: Sequence[Reply], lanes: int) -> Reading:
    rates = [_rate(reply) for reply in replies]
    equal = mean(lanes * reply["slowest"] / reply["seconds"] / 1e9 for reply in replies)
    return Reading(mean(rates), rates, {**_resources(replies), "equal_share": equal})


def _of_cost(replies: Sequence[Reply], lanes: int) -> Reading:
    costs = [_cost(reply) for reply in replies]
    received = sum(reply["bytes"] for reply in replies) / 1e9
    details = {
        "rate": mean(map(_rate, replies)),
        "everything": mean(map(_everything, replies)),
        "softirq": max(reply["used"]["softirq"] for reply in replies) / received,  # of the machine, not of a rank
    }
    return Reading(mean(costs), costs, {**_resources(replies), **details})


def _of_idle(replies: Sequence[Reply], lanes: int) -> Reading:
    wakes = [_wakes(reply) for reply in replies]
    received = sum(reply["bytes"] for reply in replies)
    busy = mean((reply["used"]["user"] + reply["used"]["system"]) / reply["seconds"] for reply in replies)
    return Reading(mean(wakes), wakes, {**_resources(replies), "cpu_ms_per_s": busy * 1e3, "received": received})


def _own_threads(window: Reply) -> float:
    """Processor time of the transport's own threads, in hundredths of a processor."""
    used = window["used"]
    own = used["user"] + used["system"] - used["driver_user"] - used["driver_system"]
    return float(own) / float(window["seconds"]) * 100


def _longest(replies: Sequence[Reply], phases: Sequence[str], name: str) -> float:
    """Of the calls of these phases, ms."""
    return max(float(reply[phase][name]) for reply in replies for phase in phases) * 1e3


def _span(replies: Sequence[Reply], phase: str) -> float:
    """Seconds from the first rank's beginning to the last one's end. The ranks share a clock."""
    return float(max(reply[phase]["ended"] for reply in replies) - min(reply[phase]["began"] for reply in replies))


def _of_connections(replies: Sequence[Reply], lanes: int) -> Reading:
    making = ("listen", "connect")
    listening = [reply["listen"]["ended"] - reply["listen"]["began"] for reply in replies]
    received = sum(reply["moving"]["bytes"] for reply in replies)
    details = {
        "longest_ms": _longest(replies, making, "longest"),
        "longest_wait_ms": _longest(replies, making, "longest_wait"),
        "moving_longest_ms": _longest(replies, ("move",), "longest"),
        "moving_wait_ms": _longest(replies, ("move",), "longest_wait"),
        "close_longest_ms": _longest(replies, ("close",), "longest"),
        "close_wait_ms": _longest(replies, ("close",), "longest_wait"),
        "close_ms": _span(replies, "close") * 1e3,
        "descriptors": max(reply["held"]["descriptors"] for reply in replies),
        "memory_kib": max(reply["held"]["memory_mib"] for reply in replies) * 1024,
        "threads": max(reply["threads"] for reply in replies),
        "idle_percent": mean(_own_threads(reply["idle"]) for reply in replies),
        "moving_percent": mean(_own_threads(reply["moving"]) for reply in replies),
        "received_mb_per_s": received / replies[0]["moving"]["seconds"] / 1e6,
    }
    if all("lock_wait" in reply for reply in replies):
        details["lock_wait_ms"] = max(reply["lock_wait"] for reply in replies) * 1e3
    return Reading((max(listening) + _span(replies, "connect")) * 1e3, [], details)


def _of_pingpong(replies: Sequence[Reply], lanes: int) -> Reading:
    half_us = float(replies[0]["half_us"])
    return Reading(half_us, [half_us])


_KINDS: dict[str, Callable[[Sequence[Reply], int], Reading]] = {
    "stream": _of_stream,
    "cost": _of_cost,
    "idle": _of_idle,
    "pingpong": _of_pingpong,
    "connections": _of_connections,
}


def of_replies(work: str, replies: Sequence[Reply], lanes: int) -> Reading:
    """The reading of a load (:data:`scenarios.WORKS`) from the answers of its ranks.

    Args:
        lanes: connections of each rank, to all its peers together.
    """
    return _KINDS[work](replies, lanes)
