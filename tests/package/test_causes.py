# SPDX-License-Identifier: MIT
"""What ``bagua-net explain`` makes of a connection's counters: the cause that they show, and no other one.

Where namespaces can play a cause, tests/netns/test_limits.py does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bagua_net._stats import causes, limits
from bagua_net._stats.causes import Surroundings
from bagua_net._stats.files import Row, Snapshot

_S = 1_000_000
_GBIT = 125_000_000


def _snapshot(at_us: int, connection: dict[str, Any], stream: dict[str, Any], streams: int) -> Snapshot:
    common: dict[str, Any] = {
        "id": 1,
        "sender": 1,
        "peer": "10.0.0.2:1",
        "device": "eth0",
        "level": streams,
        "streams": streams,
        "most": 64,
    }
    times = {"published_us": at_us, "device_us": at_us}
    ends: Row = {"connection": 1, "sender": 1, "local": "10.0.0.1:5", "remote": "10.0.0.2:1", "min_rtt_us": 100}
    rows = tuple({**ends, "rtt_us": 100, "serial": serial, **stream} for serial in range(streams))
    return Snapshot(Path("one"), True, {"published_us": at_us}, ({**common, **times, **connection},), rows)


def _cause(
    streams: int = 1,
    together: float | None = 0.0,
    stream: dict[str, Any] | None = None,
    contended: bool = False,
    **connection: Any,
) -> causes.Cause | None:
    """Of two seconds in which a sender moved a gigabyte. connection, stream: what has grown since the beginning, or is
    so; a share of time is given as such."""
    shares = ("posted_us", "busy_us", "rwnd_limited_us", "sndbuf_limited_us")
    of_connection, of_stream = (
        {name: int(value * 2 * _S) if name in shares else value for name, value in row.items()}
        for row in (connection, stream or {})
    )
    before = _snapshot(_S, {"device_sent": 1}, {}, streams)
    now = _snapshot(3 * _S, {"bytes_sent": 10**9, **of_connection}, of_stream, streams)
    (rate,) = limits.rates(now, before)
    return causes.of(rate, Surroundings(together=together, contended=contended))


def _word(**of: Any) -> str | None:
    cause = _cause(**of)
    return None if cause is None else cause.word


_BUSY: dict[str, Any] = {"busy_us": 0.98}
_QUEUED: dict[str, Any] = {**_BUSY, "rtt_us": 1500}


def test_a_link_that_carries_no_more() -> None:
    assert _word(posted_us=1, stream=_QUEUED) == limits.NETWORK


def test_a_job_that_computes_in_between_is_bound_by_what_binds_it_meanwhile() -> None:
    assert _word(posted_us=0.67, stream={"busy_us": 0.67}) == limits.NETWORK
    assert _word(posted_us=0.75, stream={"busy_us": 0.69}) == limits.NETWORK
    assert _word(posted_us=0.3, stream={"busy_us": 0.3}) == limits.APPLICATION


_LOST: dict[str, Any] = {**_BUSY, "segments_sent": 10_000, "retransmits": 50}
#: The peer's acknowledgement of a lone message of three segments comes after 40 ms.
_DELAYED: dict[str, Any] = {**_BUSY, "rtt_us": 40_000, "segment": 1448}


@pytest.mark.parametrize(
    ("of", "word"),
    [
        ({"stream": {**_QUEUED, "segment": 1448}}, limits.NETWORK),
        ({"stream": {**_QUEUED, "segment": 1448, "busy_us": 0.4}}, limits.APPLICATION),
        ({"stream": {**_QUEUED, "segment": 1448}, "local_peer": 1}, limits.APPLICATION),
        ({"stream": {**_QUEUED, "segment": 1448, "rwnd_limited_us": 0.6}}, limits.RECEIVER),
        ({"stream": _DELAYED, "bytes_sent": 2 * 24 * 4096}, limits.APPLICATION),
        ({"stream": _LOST}, causes.LOSSES),
        ({"stream": _BUSY}, limits.APPLICATION),  # nothing shows that the network has them for long
        (
            {"stream": _BUSY, "device_sent": int(18.8 * _GBIT), "device_mbps": 10_000, "together": 9.3 * _GBIT},
            causes.FULL_LINK,
        ),
    ],
)
def test_messages_that_are_done_before_they_have_arrived(of: dict[str, Any], word: str) -> None:
    """A copy is kept of them. So a rank that waits for the answer to each has hardly ever something posted."""
    assert _word(posted_us=0.06, **of) == word


def test_a_lossy_stream_among_others_that_wait_for_it() -> None:
    """All wait for the last slice of a message, which waits for its retransmission."""
    before = _snapshot(_S, {}, {}, streams=2)
    now = _snapshot(3 * _S, {"bytes_sent": 10**9, "posted_us": _S // 10}, {"segments_sent": 10_000}, streams=2)
    streams = ({**now.streams[0], "busy_us": 2 * _S, "retransmits": 50}, now.streams[1])
    (rate,) = limits.rates(dataclasses.replace(now, streams=streams), before)
    cause = causes.of(rate, Surroundings())
    assert cause is not None
    assert cause.word == causes.LOSSES


def test_a_processor_that_is_late() -> None:
    assert _word(posted_us=1, stream={"busy_us": 0.3}) == limits.PROCESSOR
    assert _word(posted_us=1, stream=_BUSY, local_peer=1) == limits.PROCESSOR


@pytest.mark.parametrize("local_peer", [0, 1])
def test_processors_that_others_use_as_well(local_peer: int) -> None:
    alone, beside_others = (
        _cause(posted_us=1, stream={"busy_us": 0.3}, local_peer=local_peer, contended=each) for each in (False, True)
    )
    assert alone is not None
    assert beside_others is not None
    assert alone.word == beside_others.word == limits.PROCESSOR
    assert alone.reason != beside_others.reason


def test_streams_that_are_not_shown_are_not_idle() -> None:
    assert _word(posted_us=1, streams=4, level=16, stream=_QUEUED) == limits.NETWORK


@pytest.mark.parametrize("local_peer", [0, 1])
def test_a_connection_none_of_whose_streams_is_shown(local_peer: int) -> None:
    assert _word(posted_us=1, streams=0, level=16, local_peer=local_peer) == limits.UNKNOWN
    assert _word(posted_us=0.3, streams=0, level=16) == limits.APPLICATION
    assert _word(posted_us=1, streams=0, level=16, bytes_sent=0) is None


@pytest.mark.parametrize(("rtt_us", "word"), [(300, limits.RECEIVER), (30_000, causes.RECEIVE_BUFFER)])
def test_a_window_that_is_shut_and_one_that_may_be_too_small(rtt_us: int, word: str) -> None:
    stream = {**_BUSY, "rwnd_limited_us": 0.6, "rtt_us": 6000, "min_rtt_us": rtt_us}  # it acknowledges late
    assert _word(posted_us=1, stream=stream) == word


def test_a_send_buffer_that_is_full() -> None:
    assert _word(posted_us=1, stream={**_BUSY, "sndbuf_limited_us": 0.7}) == limits.SEND_BUFFER


_CLIMBED = {"kept_us": 5, "kept_fewer": 1, "kept_more": 4, "kept_with_fewer": 10**9, "kept_with_more": 3_900_000_000}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, causes.FLOW_LIMIT),
        ({"kept_us": 0}, limits.NETWORK),  # fewer have carried as much since
        ({"kept_with_more": 1_500_000_000}, limits.NETWORK),  # less than each flow's own would be
        ({"refused_us": 6, "refused_more": 8, "refused_with_fewer": 10**9}, limits.NETWORK),  # now the whole is full
        ({"refused_us": 4, "refused_more": 8}, causes.FLOW_LIMIT),  # that was before
    ],
)
def test_a_limit_for_each_flow(changes: dict[str, int], word: str) -> None:
    assert _word(posted_us=1, streams=4, stream=_BUSY, **{**_CLIMBED, **changes}) == word


@pytest.mark.parametrize(
    ("streams", "most", "said"), [(4, 8, "tried by themselves"), (4, 4, "BAGUA_NET_NSTREAMS"), (64, 64, "are the most")]
)
def test_what_to_do_about_a_limit_for_each_flow(streams: int, most: int, said: str) -> None:
    """A connection's share of its card may be what allows no more, and 64 are never exceeded."""
    climbed: dict[str, Any] = {**_CLIMBED, "kept_more": streams, "kept_with_more": streams * 900_000_000}
    cause = _cause(posted_us=1, streams=streams, stream=_BUSY, most=most, **climbed)
    assert cause is not None
    assert said in cause.action


def test_a_limit_for_each_flow_by_losses() -> None:
    climbed: dict[str, Any] = _CLIMBED
    lossy, other = (_cause(posted_us=1, streams=4, stream=each, **climbed) for each in (_LOST, _BUSY))
    assert lossy is not None
    assert other is not None
    assert lossy.word == other.word == causes.FLOW_LIMIT
    assert "0.50 % of the packets were sent again" in lossy.fact
    assert "ethtool" in lossy.action
    assert "ethtool" not in other.action


@pytest.mark.parametrize(("rtt_us", "word"), [(110, causes.LOSSES), (1500, limits.NETWORK)])
def test_losses_where_nothing_queues(rtt_us: int, word: str) -> None:
    stream = {**_BUSY, "rtt_us": rtt_us, "segments_sent": 10_000, "retransmits": 50}
    assert _word(posted_us=1, stream=stream) == word


@pytest.mark.parametrize(
    ("gbit", "mbps", "together", "stream", "word"),
    [
        (9.4, 10_000, 9.3 * _GBIT, _BUSY, causes.FULL_LINK),
        (9.4, 10_000, 4.0 * _GBIT, _BUSY, causes.SHARED_LINK),
        (8.0, 100_000, 4.0 * _GBIT, _QUEUED, limits.NETWORK),  # it queues elsewhere: this card has room
        (20.0, 10_000, 4.0 * _GBIT, _QUEUED, limits.NETWORK),  # a virtual one, which names any speed
        (8.0, 0, 4.0 * _GBIT, _QUEUED, causes.SHARED_LINK),
        (8.0, 0, 4.0 * _GBIT, _BUSY, limits.NETWORK),  # nothing queues
        (8.0, 0, None, _QUEUED, limits.NETWORK),  # some connections are not shown
    ],
)
def test_what_a_card_carries(gbit: float, mbps: int, together: float | None, stream: dict[str, Any], word: str) -> None:
    sent = 1 + int(2 * gbit * _GBIT)
    assert _word(posted_us=1, stream=stream, device_sent=sent, device_mbps=mbps, together=together) == word


@pytest.mark.parametrize(
    ("silent_us", "unacked", "word"),
    [(25 * _S, 3, causes.HOST_SILENT), (1000, 3, limits.STILL), (25 * _S, 0, limits.STILL)],
)
@pytest.mark.parametrize("owed", ["unacked", "probes"])  # of a sender, and of one that receives or has sent all
def test_nothing_moves(silent_us: int, unacked: int, word: str, owed: str) -> None:
    stream = {"silent_us": silent_us, owed: unacked}
    assert _word(bytes_sent=0, outstanding=1, still_us=30 * _S, stream=stream) == word
    assert _word(bytes_sent=0, outstanding=1, still_us=30 * _S, stream=stream, sender=0) in (word, limits.STILL)


def test_nothing_moves_where_all_streams_were_reset() -> None:
    of: dict[str, Any] = {"bytes_sent": 0, "outstanding": 1, "still_us": 30 * _S}
    gone, broken, slow = (
        _cause(streams=count, stream={"broken": broken, "probes": broken}, **of)
        for count, broken in ((0, 0), (2, 1), (1, 0))
    )
    assert gone is not None
    assert broken is not None
    assert slow is not None
    assert gone.word == broken.word == slow.word == limits.STILL
    assert "were reset" in gone.reason
    assert "were reset" in broken.reason
    assert "were reset" not in slow.reason


@pytest.mark.parametrize("error", [104, 2**40])
def test_what_has_failed_whatever_the_file_says(error: int) -> None:
    assert _word(error=error) == limits.FAILED


def test_nothing_is_said_of_what_is_idle() -> None:
    assert _word(bytes_sent=0) is None
