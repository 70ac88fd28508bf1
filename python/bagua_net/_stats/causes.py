# SPDX-License-Identifier: MIT
"""Why a connection is as slow as it is: one fact, one cause, and one thing to do.

:mod:`.limits` tells from the kernel's counters what a sender waits for. Here its other numbers say more: what its
trials of streams have shown, what its device carries for others, whether packets are lost although nothing queues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from . import limits
from .limits import Rate, number

#: More streams carried so many times as much …
_GAIN = 1.2
#: … and this share of what as many flows with a limit each would: then each has one.
_PROPORTIONAL = 0.6
#: Streams of a connection, and of all connections of a network card (BNET_MAX_STREAMS, plugin/scaling/quota.c).
_MOST_STREAMS, _OF_A_CARD = 64, 256
#: Others' share of what the device carries, from which on they are named.
_OTHERS = 0.2
#: Over shorter round trips a window that is shut is that of a rank which is late, unless BAGUA_NET_RCVBUF is small.
_LONG_US = 1000
#: Nothing has come from a host for so long, although it owes an answer.
_SILENT_US = 3_000_000
#: A host that was heard in this last part of the time in which nothing moved is there.
_MEANWHILE = 0.5

FLOW_LIMIT = "flow limit"
FULL_LINK = "full link"
SHARED_LINK = "shared link"
LOSSES = "losses"
RECEIVE_BUFFER = "receive buffer"
HOST_SILENT = "host silent"


@dataclass(frozen=True)
class Cause:
    #: one of limits.ALL or of the words above
    word: str
    #: what was measured; a sentence
    fact: str
    #: what follows from it; a sentence
    reason: str
    #: what to do; a sentence
    action: str


@dataclass(frozen=True)
class Surroundings:
    """What else there is beside a connection."""

    #: all connections of its process
    process: Sequence[Rate] = ()
    #: bytes/s that the connections that are shown send through its device; None: not all are shown
    together: float | None = None
    #: processors that its process uses
    processors: float = 0.0
    #: the process shares them with others
    contended: bool = False


def size(value: float) -> str:
    """Bytes, with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def host(address: object) -> str:
    """An address without its port, which says nothing."""
    return str(address).rpartition(":")[0].removeprefix("[").removesuffix("]")


def _peer(rate: Rate) -> str:
    return host(rate.connection["peer"])


def _rate(value: float) -> str:
    return f"{size(value)}/s"


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _share(share: float) -> str:
    return f"{min(share, 1):.0%}".replace("%", " %")


def _error(code: int) -> str:
    try:
        return os.strerror(code)
    except (OverflowError, ValueError):
        return f"error {code}"


def _failed(rate: Rate) -> Cause:
    return Cause(
        limits.FAILED,
        f"The connection has ended: {_error(number(rate.connection, 'error'))}.",
        "Its rank, or the one at the other end, has said why in its log.",
        "Look at both logs, the other rank's first.",
    )


def _is_unanswered(rate: Rate) -> bool:
    still = number(rate.connection, "still_us")
    silent = all(number(row, "silent_us") >= max(_SILENT_US, _MEANWHILE * still) for row in rate.streams)
    owes = (number(row, "unacked") or number(row, "probes") for row in rate.streams if not number(row, "broken"))
    return silent and any(owes)


def _still(rate: Rate) -> Cause:
    count, seconds = number(rate.connection, "outstanding"), number(rate.connection, "still_us") / 1e6
    what = "sends" if rate.sender else "receives"
    fact = f"Nothing has moved for {seconds:.0f} s; {what} that are posted: {count}."
    if _is_unanswered(rate):
        return Cause(
            HOST_SILENT,
            fact,
            f"The host {_peer(rate)} answers nothing: it is down, or the network between is.",
            f"Look whether {_peer(rate)} can be reached. Where it answers a ping, large packets may not pass: "
            f"`bagua-net doctor --peers {_peer(rate)}` tries them.",
        )
    if not number(rate.connection, "streams") or (rate.streams and all(number(row, "broken") for row in rate.streams)):
        return Cause(
            limits.STILL,
            fact,
            "Its streams were reset, and none has taken their place.",
            f"Look whether {_peer(rate)} can be reached, and what on the way ends connections: docs/failures.md.",
        )
    reason = "The rank there sends nothing: it computes, is stopped, or waits for another rank."
    if rate.sender:
        reason = "The rank there takes nothing: it is stopped, or has not posted its receives."
    return Cause(
        limits.STILL,
        fact,
        reason,
        f"Look at the rank on {_peer(rate)}: its log, its stack (py-spy dump), and `bagua-net explain` there.",
    )


def _application(rate: Rate, process: Sequence[Rate]) -> Cause:
    waits = max((each for each in process if not each.sender), key=lambda each: each.posted, default=None)
    also = ""
    if waits is not None and waits.posted > rate.posted:
        also = f" Receives from {_peer(waits)} were posted for {_share(waits.posted)}."
    return Cause(
        limits.APPLICATION,
        f"Messages were posted for {_share(rate.posted)} of the time.{also}",
        "In between there is nothing to send: this rank computes, or waits for a slower one.",
        "If all ranks say so, the job computes. Where one says `receiver`, the rank that it sends to is the slow one.",
    )


def _receiver(rate: Rate) -> Cause:
    # A peer that does not read acknowledges late as well, so the mean says nothing of the path.
    round_trip_us = rate.shortest_us or rate.mean("rtt_us")
    fact = (
        f"The window of {_peer(rate)} was the limit for {_share(rate.rwnd)} of the time in which bytes were on the way."
    )
    if round_trip_us >= _LONG_US:
        return Cause(
            RECEIVE_BUFFER,
            f"{fact[:-1]}, and a round trip takes {round_trip_us / 1000:.3g} ms.",
            "The window is smaller than what the path holds in a round trip, or the rank there takes its messages more "
            "slowly than they come.",
            f"Look at `ss -tm` on {_peer(rate)}. Where Recv-Q is near 0, raise net.ipv4.tcp_rmem's last number, and "
            "leave BAGUA_NET_RCVBUF unset. Where it stays full, that rank is slow: `bagua-net explain` there.",
        )
    return Cause(
        limits.RECEIVER,
        fact,
        "The rank there takes its messages more slowly than they come: it posts late, or its processor is busy.",
        f"Look at the rank on {_peer(rate)}, which is slower than this one: `bagua-net explain` there.",
    )


def _send_buffer(rate: Rate) -> Cause:
    return Cause(
        limits.SEND_BUFFER,
        f"The kernel's send buffer was full for {_share(rate.sndbuf)} of the time in which bytes were on the way; a "
        f"round trip takes {rate.mean('rtt_us') / 1000:.3g} ms.",
        "The buffer is smaller than what the network holds in a round trip.",
        "Raise net.ipv4.tcp_wmem's last number and net.core.wmem_max, and leave BAGUA_NET_SNDBUF unset.",
    )


def _processor(rate: Rate, around: Surroundings) -> Cause:
    fact = f"Messages were posted for {_share(rate.posted)} of the time, and a stream had bytes on the way for "
    fact += f"{_share(rate.busy)}; the process used {around.processors:.1f} processors."
    if number(rate.connection, "local_peer"):
        return Cause(
            limits.PROCESSOR,
            fact,
            "Both ranks are on this machine, whose processors copy what they send each other"
            + (", and other work has a part of them." if around.contended else "."),
            "Between ranks of one machine NCCL's shared memory is faster, unless NCCL_SHM_DISABLE turns it off.",
        )
    reason = "The network takes what it gets: this host's processors are slower."
    if around.contended:
        reason = "The network takes what it gets, and this process shares its processors with others."
    return Cause(
        limits.PROCESSOR,
        fact,
        reason,
        "Give the job more processors, pin ranks to their own, or set BAGUA_NET_THREADS. A thread moves a connection "
        "at a time; NCCL makes more of them with NCCL_MIN_NCHANNELS.",
    )


def _unknown(rate: Rate) -> Cause:
    return Cause(
        limits.UNKNOWN,
        f"Messages were posted for {_share(rate.posted)} of the time; its streams are not among those that the process "
        "shows.",
        "Only a stream's counters tell what a connection waits for.",
        "Look at other connections of this process, to the same host if there are any: the same may limit this one.",
    )


def _repeated(rate: Rate) -> str:
    return f"{rate.retransmitted:.2%} of the packets were sent again".replace("%", " %")


def _losses(rate: Rate) -> Cause | None:
    if not rate.loses:
        return None
    return Cause(
        LOSSES,
        f"{_repeated(rate)}, while hardly any bytes queue on the way.",
        "They are dropped on the way: by a switch with a short buffer, a policer, or a damaged cable or port.",
        "Look at the drop counters along the way, and at `ethtool -S`; BAGUA_NET_CONGESTION=bbr bears losses.",
    )


def _own_link(rate: Rate) -> Cause | None:
    device, speed = str(rate.connection.get("device", "")), number(rate.connection, "device_mbps") * 125_000
    if not rate.fills_device:
        return None
    return Cause(
        FULL_LINK,
        f"{device} sends {_rate(rate.device_bytes_per_second)} of the {_rate(speed)} that it can.",
        "The card is full: this is as fast as it goes.",
        "A faster card, several of them (BAGUA_NET_BOND), or less to send (docs/algorithms.md).",
    )


def _shared_link(rate: Rate, together: float | None) -> Cause | None:
    """Where the card's speed is known, it must be full; where it is not, bytes must queue."""
    carried, speed = rate.device_bytes_per_second, number(rate.connection, "device_mbps")
    if together is None or carried - together <= _OTHERS * carried:
        return None
    if not (rate.fills_device if speed else rate.queues):
        return None
    return Cause(
        SHARED_LINK,
        f"{rate.connection.get('device', '')} sends {_rate(carried)}, of which {_rate(carried - together)} are not of "
        "the connections that are shown here.",
        "Bytes queue, and other traffic of this host has a part in it.",
        "Move that traffic to another card or time, or give the job its own card (NCCL_SOCKET_IFNAME).",
    )


def _with_peer(rate: Rate, process: Sequence[Rate]) -> float:
    """Bytes/s of all connections like this one, which share its trials."""
    return sum(
        each.bytes_per_second
        for each in process or (rate,)
        if each.sender and _peer(each) == _peer(rate) and each.connection.get("device") == rate.connection.get("device")
    )


def _flow_limit(rate: Rate, process: Sequence[Rate]) -> Cause | None:
    """The trial itself was short: what more streams carry now counts as well."""
    row = rate.connection
    fewer, more, level = number(row, "kept_fewer"), number(row, "kept_more"), number(row, "level")
    with_fewer, with_more = (
        number(row, "kept_with_fewer"),
        max(number(row, "kept_with_more"), _with_peer(rate, process)),
    )
    if not number(row, "kept_us") or not fewer or level < more:
        return None
    if with_more < max(_GAIN, _PROPORTIONAL * more / fewer) * with_fewer:
        return None
    if number(row, "refused_us") > number(row, "kept_us") and number(row, "refused_more") > level:
        return None  # since then the whole has been the limit
    action = "More streams are tried by themselves, within seconds while the job sends."
    if level >= number(row, "most"):
        bounds = f"by BAGUA_NET_NSTREAMS, by a card's {_OF_A_CARD} for all processes, or by ulimit -n"
        action = f"No more than {level} are allowed: {bounds}."
        if level >= _MOST_STREAMS:
            action = f"{_MOST_STREAMS} are the most that a connection has: more connections would carry more."
    fact = f"{_streams(fewer)} carried {_rate(with_fewer)}, and {more} carry {_rate(with_more)}."
    reason = "The network limits each flow, not the whole: more streams carry more."
    if rate.loses:
        fact += f" {_repeated(rate)}, while hardly any bytes queue on the way."
        reason = "Packets are lost, by a policer or a damaged path, and each flow is slower for it: more carry more."
        action += (
            " Look at the drop counters along the way, and at `ethtool -S`; BAGUA_NET_CONGESTION=bbr bears losses."
        )
    return Cause(FLOW_LIMIT, fact, reason, action)


def _network(rate: Rate) -> Cause:
    row, level = rate.connection, number(rate.connection, "level")
    fact = f"{_streams(level)} had bytes on the way for {_share(rate.busy)} of the time; a round trip takes "
    fact += f"{rate.mean('rtt_us') / 1000:.3g} ms."
    reason = "The network between the two hosts is the limit. Whether more streams carry more was not tried."
    if number(row, "refused_us") and number(row, "refused_more") > level and number(row, "refused_with_fewer"):
        times = number(row, "refused_with_more") / number(row, "refused_with_fewer")
        fact += f" {number(row, 'refused_more')} streams were tried and carried {times:.2f} × as much."
        reason = "The network between the two hosts carries no more: its slowest link is full, or shared with others."
    return Cause(
        limits.NETWORK,
        fact,
        reason,
        "Compare with the link's rated speed (`bagua-net bench` between the two hosts, iperf3).",
    )


def of(rate: Rate, around: Surroundings) -> Cause | None:
    """What holds a connection back over an interval. None: it moves nothing and has nothing to move, or it receives,
    and its sender knows."""
    simple = {
        limits.FAILED: _failed,
        limits.STILL: _still,
        limits.RECEIVER: _receiver,
        limits.SEND_BUFFER: _send_buffer,
        limits.UNKNOWN: _unknown,
    }
    if rate.limit in simple:
        return simple[rate.limit](rate)
    if rate.limit == limits.APPLICATION:
        return _application(rate, around.process)
    if rate.limit == limits.PROCESSOR:
        return _processor(rate, around)
    if rate.limit != limits.NETWORK:
        return None
    return (
        _shared_link(rate, around.together)
        or _own_link(rate)
        or _flow_limit(rate, around.process)
        or _losses(rate)
        or _network(rate)
    )
