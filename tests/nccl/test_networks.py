# SPDX-License-Identifier: MIT
"""Real NCCL over the plugin between two hosts: every element of allreduces and of all-to-alls is right, through every
protocol of NCCL, form of the plugin, and kind of network. LL and LL128 are where a kernel polls the lines of a message
while the network writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nccl import nccl_job, releases
from tests.support import netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

Hosts = tuple[Host, Host]

#: Elements: one, a few slots of LL, more than one channel's, and many slices of many messages.
SUMS = [1, 3_000, 70_001, 1_500_000]
EXCHANGES = [1, 5_000, 200_003]

#: Messages are cut wherever the plugin may cut, over more streams than there are messages.
CUT = {"BAGUA_NET_MIN_NSTREAMS": "8", "BAGUA_NET_MIN_CHUNKSIZE": "4K", "BAGUA_NET_MAX_CHUNKSIZE": "4K"}
FORMS = {
    "one stream": {"BAGUA_NET_NSTREAMS": "1"},
    "64 streams": {"BAGUA_NET_MIN_NSTREAMS": "64"},
    "cut": CUT,
    "one worker": {"BAGUA_NET_THREADS": "1", **CUT},
    "two workers": {"BAGUA_NET_THREADS": "2", "BAGUA_NET_MIN_NSTREAMS": "4"},
    "without copies": {"BAGUA_NET_ZEROCOPY": "1", "BAGUA_NET_MIN_NSTREAMS": "4"},
    "small buffers": {"BAGUA_NET_SNDBUF": "32K", "BAGUA_NET_RCVBUF": "32K", "BAGUA_NET_NOTSENT_LOWAT": "4K"},
}
PROTOCOLS = ("LL", "LL128", "Simple")


@contextmanager
def _two_hosts(links: int = 1) -> Iterator[Hosts]:
    with netns.two_hosts(links) as hosts:
        for link in range(links):
            for number, host in enumerate(hosts, start=1):
                host.ip("address", "add", f"10.{77 + link}.0.{number}/24", "dev", f"link{link}")
        yield hosts


def _check(
    hosts: Hosts,
    directory: Path,
    settings: Mapping[str, str],
    *,
    ranks: int = 2,
    version: str = releases.ONE,
    times: int = 2,
    on_pci: bool = False,
) -> None:
    """A job with its ranks on both hosts in turn."""
    every = {**releases.settings(version), "NCCL_SOCKET_IFNAME": "link", **settings}
    prefixes = [host.pci_prefix if on_pci else host.prefix for host in (hosts[rank % 2] for rank in range(ranks))]
    with nccl_job.start(
        "traffic_rank", ranks, version, nccl_job.BAGUA, directory, settings=every, prefixes=prefixes
    ) as job:
        assert job.ask({"do": "sums", "counts": SUMS, "times": times}) == [0] * ranks
        assert job.ask({"do": "exchange", "counts": EXCHANGES}) == [0] * ranks
        job.finish()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", releases.FEW)
def test_protocols(version: str, protocol: str, tmp_path: Path) -> None:
    with _two_hosts() as hosts:
        _check(hosts, tmp_path, {"NCCL_PROTO": protocol, **CUT}, version=version)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "cut"])
def test_forms(form: str, tmp_path: Path) -> None:
    with _two_hosts() as hosts:
        _check(hosts, tmp_path, FORMS[form])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_workers_write_lines_that_are_polled(protocol: str, tmp_path: Path) -> None:
    with _two_hosts() as hosts:
        _check(hosts, tmp_path, {"NCCL_PROTO": protocol, **FORMS["one worker"]})


#: Calls of which all slices are cut, and such that fit into a read-ahead and are copied.
TORN = {"cut": (CUT, [500_000, 70_001], 100), "copied": ({}, [30, 200, 900], 1_500)}


@pytest.mark.parametrize("way", variants("copied", nightly=["cut"]))
def test_no_line_is_torn(way: str, tmp_path: Path) -> None:
    """The flag of an LL128 line arrives after its data. Otherwise a kernel that polls reads old data now and then: with
    the first 64 bytes of a message as a slice of their own, or with copies backwards, in most runs of this test."""
    settings, counts, times = TORN[way]
    every = {**releases.settings(releases.ONE), "NCCL_PROTO": "LL128", "NCCL_SOCKET_IFNAME": "lo", **settings}
    with nccl_job.start("traffic_rank", 2, releases.ONE, nccl_job.BAGUA, tmp_path, settings=every) as job:
        assert job.ask({"do": "sums", "counts": counts, "times": times}) == [0, 0]
        job.finish()


@pytest.mark.parametrize("algorithm", variants("Tree", nightly=["Ring"]))
def test_four_ranks(algorithm: str, tmp_path: Path) -> None:
    """Some peers are on the same host, some on the other."""
    with _two_hosts() as hosts:
        _check(hosts, tmp_path, {"NCCL_ALGO": algorithm, "BAGUA_NET_MIN_NSTREAMS": "2"}, ranks=4, times=1)


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_flows_of_unequal_speed(protocol: str, tmp_path: Path) -> None:
    """Streams in four classes by a hash: slices of one message arrive in another order than they were sent."""
    with _two_hosts() as hosts:
        for number, host in enumerate(hosts):
            try:
                host.cap_flows("link0", [400, 100, 200, 800], seed=0xA5 + number)
            except netns.CommandFailed as error:
                netns.needs("limit flows", error)
        _check(hosts, tmp_path, {"NCCL_PROTO": protocol, "BAGUA_NET_MIN_NSTREAMS": "8"})
        for host in hosts:
            assert sum(carried > 100_000 for carried in host.capped_bytes("link0")) > 1


def test_packets_are_lost(tmp_path: Path) -> None:
    with _two_hosts() as hosts:
        for host in hosts:
            try:
                host.drop_received(per_mille=5)
            except netns.CommandFailed as error:
                netns.needs("drop packets", error)
        _check(hosts, tmp_path, {"NCCL_PROTO": "LL", "BAGUA_NET_MIN_NSTREAMS": "4"}, times=1)
        assert all(host.dropped_packets() > 0 for host in hosts)


#: Far less than half of what each host sends, and more than connecting does.
A_PART = 500_000


@pytest.mark.parametrize("version", releases.FEW)
@pytest.mark.parametrize("bond", ["0", "1"])
def test_two_nics_are_both_used(bond: str, version: str, tmp_path: Path) -> None:
    """As two devices, to which NCCL gives channels, and as one that the plugin makes of both."""
    with _two_hosts(links=2) as hosts:
        _check(hosts, tmp_path, {"BAGUA_NET_BOND": bond}, version=version)
        for host in hosts:
            assert all(host.sent_bytes(link) > A_PART for link in ("link0", "link1"))


@pytest.mark.parametrize("version", [version for version in releases.FEW if releases.merges(version)])
def test_two_cards_that_nccl_merges(version: str, tmp_path: Path) -> None:
    with _two_hosts(links=2) as hosts:
        merge = {"NCCL_NET_FORCE_MERGE": "link0,link1", "BAGUA_NET_BOND": "0"}
        _check(hosts, tmp_path, merge, version=version, on_pci=True)
        for host in hosts:
            assert all(host.sent_bytes(link) > A_PART for link in ("link0", "link1"))


@pytest.mark.nightly
def test_each_channel_is_a_connection(tmp_path: Path) -> None:
    settings = {**releases.settings(releases.ONE), "NCCL_MIN_NCHANNELS": "4"}
    with nccl_job.start("traffic_rank", 2, releases.ONE, nccl_job.BAGUA, tmp_path, settings=settings) as job:
        assert job.ask({"do": "sums", "counts": SUMS}) == [0, 0]
        for said in ("sends to", "receives from"):
            assert job.log(0).count(f"NET/BaguaNet: {said}") == 4
        job.finish()
