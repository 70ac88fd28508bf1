# SPDX-License-Identifier: MIT
"""The behaviours that NCCL relies on: each test runs one scenario of drive_contract_*.c by its name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.strangers import here
from tests.support import drivers, netns
from tests.support.drivers import SANITIZERS
from tests.support.tiers import thirds, variants

#: Scenario, and the lowest API version that has the behaviour.
SCENARIOS = {
    # messages
    "zero_bytes": 4,
    "slice_edges": 4,
    "small_alone": 4,
    "receive_larger": 4,
    "truncation": 4,
    "many_posted": 4,
    "any_order": 4,
    "completion_untested": 4,
    "silent_sender": 4,
    "silent_receiver": 4,
    "request_written": 4,
    "null_size": 4,
    # handles and connections
    "properties": 4,
    "bad_config": 4,
    "handle_bytes": 4,
    "handle_copied": 4,
    "foreign_handle": 4,
    "zero_handle": 4,
    "garbage_handle": 4,
    "connect_before_accept": 4,
    "never_accepted": 4,
    "accept_polls": 5,
    "connect_polls": 5,
    "several_accepts": 4,
    "stale_handle": 4,
    "listener_gone": 4,
    "contexts": 11,
    "init_twice": 4,
    "log_lines": 4,
    "log_intent": 11,
    # rejected connections
    "rejected_garbage": 4,
    "rejected_zeroes": 4,
    "rejected_http": 4,
    "rejected_nccl": 4,
    "rejected_silent": 4,
    "rejected_leave": 4,
    "rejected_replay": 5,
    "foreign_listener": 5,
    # peers that speak the protocol themselves
    "older_connector": 4,
    "older_listener": 4,
    "older_handle": 4,
    "repeated_slice": 4,
    "questions": 4,
    "small_in_parts": 4,
    "small_copied_in_order": 4,
    # streams and limits
    "streams_join_busy": 4,
    "receiver_pauses": 4,
    "truncation_reaches_sender": 4,
    "truncation_reaches_sender_by_streams": 4,
    "rejected_beyond_limit": 4,
    "streams_within_limit": 4,
    "large_message": 12,
    # socket options of a connection
    "traffic_class": 10,
    "traffic_class_refused": 10,
    "traffic_class_parameter": 4,
    "congestion": 4,
    "congestion_within_host": 4,
    "congestion_unknown": 4,
    "pacing": 4,
    # the memory of a send without a copy
    "zerocopy_waits": 4,
    "zerocopy_never": 4,
    "zerocopy_dereg": 4,
    "zerocopy_close": 4,
    # devices that NCCL merges into one
    "merged_device": 9,
    "merge_refused": 9,
    # closing
    "dereg_receiving": 4,
    "dereg_sending": 4,
    "close_outstanding": 4,
    "close_dead_peer": 4,
    "close_keeps_sent": 4,
    "close_keeps_large": 4,
    "close_budget": 4,
    "exit_budget": 4,
    "nothing_left": 4,
    "dlclose_draining": 4,
    # processes
    "killed_while_receiving": 4,
    "killed_while_sending": 4,
    "posts_on_broken": 4,
    "closed_too_early": 4,
    "fork_lives_on": 4,
    "fork_child_exits": 4,
    "fork_child_connects": 4,
    "signals_blocked": 4,
    "silent_stdout": 4,
}

#: A sanitizer keeps a shadow of every byte, which for this much data exceeds a machine's memory.
TOO_LARGE = {"large_message"}

#: Here, a send finishes before the peer has taken it.
ONLY_COPIED = {"close_budget", "exit_budget"}

#: ThreadSanitizer does not support threads that start in the child of a multi-threaded process.
LATE_THREADS = {"fork_child_connects"}


#: The control thread alone takes part, whatever moves data by whichever table.
WITHOUT_DATA = {"questions"}


#: Here the driver is a peer that speaks the protocol byte by byte, and has no secret.
SPEAKS_ITSELF = {
    "older_connector",
    "older_listener",
    "older_handle",
    "repeated_slice",
    "small_in_parts",
    "small_copied_in_order",
    "rejected_replay",
    "foreign_listener",
}

#: An encrypted slice is sent from the library's own buffer, so these do not apply.
ZEROCOPY = {"zerocopy_waits", "zerocopy_dereg", "zerocopy_close"}

#: Scenarios in which data moves.
WITH_DATA = [name for name in SCENARIOS if name not in WITHOUT_DATA]
NEWEST = 12


def _rows(api: int) -> list[tuple[str, int]]:
    return [(name, api) for name in SCENARIOS if SCENARIOS[name] <= api and (name in WITH_DATA or api == NEWEST)]


def _with_data(*, without: Iterable[str] = ()) -> list[str]:
    return [name for name in WITH_DATA if name not in without]


def test_no_scenario_is_left_out() -> None:
    assert drivers.contract_list(drivers.build()) == SCENARIOS


@pytest.mark.parametrize(("scenario", "api"), variants(*_rows(NEWEST), gate=_rows(4), nightly=_rows(6)))
def test_behaviour(scenario: str, api: int) -> None:
    drivers.contract(drivers.build(), api, scenario)


@pytest.mark.parametrize(
    "scenario",
    variants(gate=["killed_while_sending"], nightly=[name for name in WITH_DATA if name != "killed_while_sending"]),
)
def test_behaviour_over_several_streams(scenario: str) -> None:
    """The loopback interface has one stream unless told otherwise."""
    settings = {
        "BAGUA_NET_MIN_NSTREAMS": "6",
        "BAGUA_NET_NSTREAMS": "6",
        "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        "BAGUA_NET_MAX_CHUNKSIZE": "64K",
    }
    drivers.contract(drivers.build(), NEWEST, scenario, settings)


@pytest.mark.parametrize("scenario", thirds(_with_data(), 0))
def test_behaviour_with_repair(scenario: str) -> None:
    drivers.contract(drivers.build(), NEWEST, scenario, {"BAGUA_NET_REPAIR": "1"})


def _workers(threads: int, streams: int) -> dict[str, str]:
    return {"BAGUA_NET_THREADS": str(threads), "BAGUA_NET_MIN_NSTREAMS": str(streams)}


@pytest.mark.nightly
@pytest.mark.parametrize(("threads", "streams"), [(1, 1), (4, 6)])
@pytest.mark.parametrize("scenario", WITH_DATA)
def test_behaviour_with_workers(scenario: str, threads: int, streams: int) -> None:
    """Threads of the library move the data instead of the caller's."""
    drivers.contract(drivers.build(), NEWEST, scenario, _workers(threads, streams))


@pytest.mark.parametrize("streams", variants(4, nightly=[1]))
@pytest.mark.parametrize("scenario", thirds(_with_data(without=SPEAKS_ITSELF | ZEROCOPY), 2))
def test_behaviour_encrypted(tmp_path: Path, scenario: str, streams: int) -> None:
    settings = {
        "BAGUA_NET_SECRET_FILE": here.secret_file(tmp_path, b"the secret of this test"),
        "BAGUA_NET_ENCRYPT": "1",
        "BAGUA_NET_MIN_NSTREAMS": str(streams),
    }
    drivers.contract(drivers.build(), NEWEST, scenario, settings)


@pytest.mark.parametrize(("streams", "threads"), variants((6, 4), nightly=[(1, 0), (6, 0)]))
@pytest.mark.parametrize("scenario", thirds(_with_data(without=ONLY_COPIED), 1))
def test_behaviour_without_copies(scenario: str, streams: int, threads: int) -> None:
    """On loopback the kernel uses the sender's memory until it delivers, and copies then."""
    settings = {
        "BAGUA_NET_ZEROCOPY": "1",
        "BAGUA_NET_MIN_NSTREAMS": str(streams),
        "BAGUA_NET_THREADS": str(threads),
    }
    drivers.contract(drivers.build(), NEWEST, scenario, settings)


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
@pytest.mark.parametrize("api", [10, 11])
def test_traffic_class_as_each_version_hands_it_over(api: int, family: str) -> None:
    if family == "AF_INET6" and not netns.has_ipv6("lo"):
        pytest.skip("the loopback interface has no IPv6 address")
    drivers.contract(drivers.build(), api, "traffic_class", {"NCCL_SOCKET_FAMILY": family})


@pytest.mark.nightly
@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(("scenario", "api"), [row for row in _rows(6) + _rows(NEWEST) if row[0] not in TOO_LARGE])
def test_sanitized(scenario: str, api: int, sanitizer: str) -> None:
    drivers.contract(drivers.build(sanitizer), api, scenario)


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", variants(gate=[4], nightly=[1]))
@pytest.mark.parametrize("scenario", thirds(_with_data(without=TOO_LARGE | LATE_THREADS), 0, 1))
def test_races_with_workers(scenario: str, threads: int) -> None:
    drivers.contract(drivers.build("thread"), NEWEST, scenario, _workers(threads, streams=2))


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", thirds(_with_data(without=TOO_LARGE), 2))
def test_addresses_with_workers(scenario: str) -> None:
    drivers.contract(drivers.build("address"), NEWEST, scenario, _workers(4, streams=2))
