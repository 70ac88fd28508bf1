# SPDX-License-Identifier: MIT
"""Messages through every table of the library, driven as by NCCL's proxy: every byte arrives at its place.

Each message names its sender, connection, number and offset in every word (drive_net*.c).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import drivers
from tests.support.drivers import APIS, SANITIZERS
from tests.support.tiers import variants

MESSAGES = 2500
CONNECTIONS = 4


def _drive(built: drivers.Build, *options: object, **named: Any) -> dict[str, Any]:
    return drivers.net(built, *map(str, options), **named)


def _ten_thousand(built: drivers.Build, api: int, procs: int, *options: object) -> None:
    summary = _drive(
        built, "--api", api, "--procs", procs, "--messages", MESSAGES, "--connections", CONNECTIONS, *options
    )
    assert summary["messages"] == 10_000
    assert summary["api"] == api


@pytest.mark.parametrize("api", variants(12, gate=[4, 8], nightly=[api for api in APIS if api not in (4, 8, 12)]))
def test_two_processes(api: int) -> None:
    _ten_thousand(drivers.build(), api, 2, "--seed", api)


@pytest.mark.gate
@pytest.mark.parametrize("api", variants(4, 8, 12, nightly=[api for api in APIS if api not in (4, 8, 12)]))
def test_four_processes_that_post_more_and_unmap_early(api: int) -> None:
    """Receives are posted larger than the sends; buffers are unmapped between deregMr and close."""
    _ten_thousand(drivers.build(), api, 4, "--seed", 100 + api, "--posted-larger", "--unmap")


@pytest.mark.parametrize("api", variants(12, nightly=[5]))
@pytest.mark.parametrize("order", ["random", "reverse"])
def test_any_order_of_tests_with_the_whole_window_posted(api: int, order: str) -> None:
    summary = _drive(
        drivers.build(), "--api", api, "--procs", 3, "--messages", 1000, "--outstanding", 32, "--order", order
    )
    assert summary["messages"] == 4000


@pytest.mark.parametrize("api", variants(12, gate=[4], nightly=[8]))
def test_communicators_that_connect_while_others_move_data(api: int) -> None:
    """Three communicators with two threads each; all but each one's first connection open under load."""
    options = ["--communicators", 3, "--connections", 8, "--messages", 300, "--stagger", "--unmap"]
    summary = _drive(drivers.build(), "--api", api, "--procs", 3, *options)
    assert summary["messages"] == 3 * 8 * 300


def test_many_connections() -> None:
    options = ["--connections", 96, "--messages", 40, "--max-size", 200_000]
    assert _drive(drivers.build(), "--procs", 4, *options)["messages"] == 96 * 40


def test_large_messages() -> None:
    """Many slices in flight at once, of sizes that are multiples of nothing."""
    sizes = "33554432,0,25000001,4096,12582917"
    assert _drive(drivers.build(), "--sizes", sizes, "--messages", 10, "--connections", 2)["messages"] == 20


_HERE_AND_THERE = [
    ({"BAGUA_NET_NSTREAMS": "1"}, {"BAGUA_NET_MIN_NSTREAMS": "16", "BAGUA_NET_NSTREAMS": "16"}),
    (
        {"BAGUA_NET_MIN_NSTREAMS": "8", "BAGUA_NET_NSTREAMS": "8"},
        {"BAGUA_NET_MIN_NSTREAMS": "3", "BAGUA_NET_NSTREAMS": "3"},
    ),
    (
        {
            "BAGUA_NET_MIN_NSTREAMS": "5",
            "BAGUA_NET_NSTREAMS": "5",
            "BAGUA_NET_MIN_CHUNKSIZE": "4096",
            "BAGUA_NET_MAX_CHUNKSIZE": "4096",
        },
        {
            "BAGUA_NET_MIN_NSTREAMS": "2",
            "BAGUA_NET_NSTREAMS": "2",
            "BAGUA_NET_MIN_CHUNKSIZE": "1M",
            "BAGUA_NET_MAX_CHUNKSIZE": "8M",
        },
    ),
    ({"BAGUA_NET_SNDBUF": "32K", "BAGUA_NET_NOTSENT_LOWAT": "4K"}, {"BAGUA_NET_RCVBUF": "256K"}),
]


@pytest.mark.gate
@pytest.mark.parametrize(("here", "there"), _HERE_AND_THERE)
def test_processes_that_are_configured_differently(here: dict[str, str], there: dict[str, str]) -> None:
    wraps = []
    for rank, variables in enumerate((here, there)):
        wraps += ["--wrap", f"{rank}=env " + " ".join(f"{name}={value}" for name, value in variables.items())]
    assert _drive(drivers.build(), "--messages", 500, *wraps)["messages"] == 2000


@pytest.mark.gate
@pytest.mark.parametrize("streams", variants(7, 64, nightly=[1, 2, 16]))
@pytest.mark.parametrize("api", variants(12, nightly=[4]))
def test_streams(api: int, streams: int) -> None:
    """Messages that are split over several streams, behind small ones that are not."""
    variables = {
        "BAGUA_NET_MIN_NSTREAMS": str(streams),
        "BAGUA_NET_NSTREAMS": str(streams),
        "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        "BAGUA_NET_MAX_CHUNKSIZE": "64K",
    }
    options = ["--messages", 400, "--sizes", "1000000,10,0,70000,4096,4097,300000", "--posted-larger", "--unmap"]
    assert _drive(drivers.build(), "--api", api, *options, settings=variables)["messages"] == 1600


@pytest.mark.parametrize("threads", variants(4, gate=[0], nightly=[1, 16]))
@pytest.mark.parametrize("streams", variants(5, nightly=[1]))
def test_workers(threads: int, streams: int) -> None:
    """Threads of the library move the data of several connections; some are small and stay with the caller."""
    variables = {"BAGUA_NET_THREADS": str(threads), "BAGUA_NET_MIN_NSTREAMS": str(streams)}
    options = [
        "--connections",
        6,
        "--messages",
        600,
        "--sizes",
        "1000000,10,0,70000,4096",
        "--posted-larger",
        "--unmap",
    ]
    assert _drive(drivers.build(), "--procs", 3, *options, settings=variables)["messages"] == 3600


_WITHOUT_COPIES = ["--sizes", "1000000,10,0,70000,4096", "--unmap", "--outstanding", 32, "--order", "random"]


@pytest.mark.gate
@pytest.mark.parametrize("threads", variants(0, nightly=[2]))
@pytest.mark.parametrize("streams", variants(5, nightly=[1]))
def test_without_copies(threads: int, streams: int) -> None:
    """Buffers are refilled as soon as a send is done."""
    variables = {"BAGUA_NET_ZEROCOPY": "1", "BAGUA_NET_THREADS": str(threads), "BAGUA_NET_MIN_NSTREAMS": str(streams)}
    options = ["--procs", 3, "--connections", 6, "--messages", 600, *_WITHOUT_COPIES]
    assert _drive(drivers.build(), *options, settings=variables)["messages"] == 3600


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("threads", variants(gate=[4], nightly=[0]))
def test_sanitized_without_copies(threads: int, sanitizer: str) -> None:
    variables = {"BAGUA_NET_ZEROCOPY": "1", "BAGUA_NET_THREADS": str(threads), "BAGUA_NET_MIN_NSTREAMS": "3"}
    options = ["--procs", 3, "--connections", 6, "--messages", 100, *_WITHOUT_COPIES]
    assert _drive(drivers.build(sanitizer), *options, settings=variables)["messages"] == 600


_EDGES = sorted(
    {size + delta for size in (0, 16, 128, 4096, 65536, 1 << 20) for delta in (-1, 0, 1) if size + delta >= 0}
)
_SIZES = st.one_of(st.sampled_from(_EDGES), st.integers(0, 16_384), st.integers(0, 3_000_000))


@settings(max_examples=25)
@given(
    api=st.sampled_from(APIS),
    procs=st.integers(2, 4),
    connections=st.integers(1, 6),
    sizes=st.lists(_SIZES, min_size=1, max_size=12),
    outstanding=st.integers(1, 32),
    order=st.sampled_from(["oldest", "random", "reverse"]),
    flags=st.sets(st.sampled_from(["--posted-larger", "--unmap"])),
    streams=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_sizes_and_orders(
    api: int,
    procs: int,
    connections: int,
    sizes: list[int],
    outstanding: int,
    order: str,
    flags: set[str],
    streams: int,
    seed: int,
) -> None:
    summary = _drive(
        drivers.build(),
        *("--api", api, "--procs", procs, "--connections", connections, "--outstanding", outstanding),
        *("--sizes", ",".join(map(str, sizes)), "--messages", 2 * len(sizes), "--order", order, "--seed", seed),
        *sorted(flags),
        settings={"BAGUA_NET_MIN_NSTREAMS": str(streams), "BAGUA_NET_NSTREAMS": str(streams)},
    )
    assert summary["messages"] == 2 * len(sizes) * connections
    assert summary["bytes"] == 2 * sum(sizes) * connections


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_streams_that_join_while_others_move_data(sanitizer: str) -> None:
    """Each connection has messages before it has a second stream."""
    options = ["--connections", 8, "--messages", 60, "--stagger", "--unmap", "--outstanding", 32]
    variables = {
        "BAGUA_NET_MIN_NSTREAMS": "16",
        "BAGUA_NET_NSTREAMS": "16",
        "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        "BAGUA_NET_MAX_CHUNKSIZE": "64K",
    }
    summary = _drive(drivers.build(sanitizer), "--api", 12, *options, "--sizes", "1000000,0,70000", settings=variables)
    assert summary["messages"] == 8 * 60


@pytest.mark.sanitize
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("api", variants(gate=[12], nightly=[6]))
class TestSanitized:
    def test_two_processes(self, api: int, sanitizer: str) -> None:
        _ten_thousand(drivers.build(sanitizer), api, 2, "--unmap")

    def test_four_processes(self, api: int, sanitizer: str) -> None:
        _ten_thousand(drivers.build(sanitizer), api, 4, "--posted-larger", "--outstanding", 32, "--order", "random")

    def test_communicators_that_connect_while_others_move_data(self, api: int, sanitizer: str) -> None:
        options = ["--communicators", 3, "--connections", 4, "--messages", 200, "--stagger", "--unmap"]
        variables = {
            "BAGUA_NET_MIN_NSTREAMS": "3",
            "BAGUA_NET_NSTREAMS": "3",
            "BAGUA_NET_MIN_CHUNKSIZE": "4K",
            "BAGUA_NET_MAX_CHUNKSIZE": "64K",
        }
        summary = _drive(drivers.build(sanitizer), "--api", api, "--procs", 3, *options, settings=variables)
        assert summary["messages"] == 3 * 4 * 200

    @pytest.mark.parametrize("threads", variants(4, nightly=[1]))
    def test_workers(self, threads: int, api: int, sanitizer: str) -> None:
        options = [
            "--communicators",
            2,
            "--connections",
            4,
            "--messages",
            300,
            "--stagger",
            "--unmap",
            "--order",
            "random",
        ]
        variables = {
            "BAGUA_NET_THREADS": str(threads),
            "BAGUA_NET_MIN_NSTREAMS": "3",
            "BAGUA_NET_MIN_CHUNKSIZE": "4K",
        }
        summary = _drive(drivers.build(sanitizer), "--api", api, "--procs", 3, *options, settings=variables)
        assert summary["messages"] == 2 * 4 * 300
