# SPDX-License-Identifier: MIT
"""Jobs that start under difficulties, without a debug variable: they work, or each rank says why not long before its
group's timeout, which is longer than a test may take."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import drivers, netns
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_SECONDS = 60
_DEAD = r"rank 1.*(has ended|nothing listens there)"
_LOST = r"rank \d lost rank 1: it has ended"
_SLOWER = "bagua_net: the ranks of a host cannot share memory{} and use TCP, which is slower"


class _Rank:
    def __init__(
        self,
        what: str,
        here: Path,
        rank: int,
        size: int,
        host: netns.Host | None = None,
        chosen: str = "lo",
        around: Sequence[str] = (),
    ) -> None:
        variable, _, interface = chosen.rpartition("=")
        settings = {"RANK": str(rank), "WORLD_SIZE": str(size), variable or "NCCL_SOCKET_IFNAME": interface}
        environment = {name: value for name, value in drivers.environment(settings).items() if name != "NCCL_DEBUG"}
        if variable:
            del environment["NCCL_SOCKET_IFNAME"]
        command = [sys.executable, "-m", "tests.torch_backend.starting", what, str(here)]
        self._out, self._err = here / f"out{rank}", here / f"err{rank}"
        with self._out.open("w") as out, self._err.open("w") as err:
            prefix = [*(host.prefix if host else []), *around]
            self.process = subprocess.Popen([*prefix, *command], env=environment, stdout=out, stderr=err)

    @property
    def told(self) -> str:
        return self._out.read_text().strip()

    @property
    def warned(self) -> str:
        return self._err.read_text()


def _run(what: str, here: Path, hosts: Sequence[netns.Host] = (), chosen: str = "lo", size: int = 3) -> list[_Rank]:
    """Rank 1 is on the second host, the others on the first. ``chosen``: an interface, by NCCL's variable or another
    one before it and "="."""
    with contextlib.ExitStack() as cleanup:
        ranks: list[_Rank] = []
        for number in range(size):
            ranks.append(_Rank(what, here, number, size, hosts[number == 1] if hosts else None, chosen))
            cleanup.callback(ranks[-1].process.wait)
            cleanup.callback(ranks[-1].process.kill)
        for rank in ranks:
            rank.process.wait(_SECONDS)
        return ranks


@contextlib.contextmanager
def _two_hosts(second: str = "10.79.0.2/24") -> Iterator[Sequence[netns.Host]]:
    with netns.two_hosts() as hosts:
        if ":" in second:
            hosts[0].sysctl("net.ipv6.conf.link0.disable_ipv6=1")
        hosts[0].ip("address", "add", "10.79.0.1/24", "dev", "link0")
        hosts[1].ip("address", "add", second, "dev", "link0", *(["nodad"] if ":" in second else []))
        yield hosts


@contextlib.contextmanager
def _first_leads_nowhere() -> Iterator[Sequence[netns.Host]]:
    """Two hosts with two interfaces each, link0 and link1, of which the second ones meet."""
    with netns.two_hosts(links=2) as hosts:
        for number, host in enumerate(hosts, 1):
            host.ip("address", "add", f"10.98.{number}.1/24", "dev", "link0")
            host.ip("address", "add", f"10.79.0.{number}/24", "dev", "link1")
        yield hosts


@pytest.mark.parametrize(
    ("refused", "why"),
    variants(
        ("connect", " (Permission denied)"),
        nightly=[
            ("accept", " (Too many open files)"),
            ("memfd_create", " (Function not implemented)"),
            ("lock", " (No locks available)"),
        ],
    ),
)
def test_ranks_of_a_host_that_cannot_share_memory_use_tcp(tmp_path: Path, refused: str, why: str) -> None:
    ranks = _run(refused, tmp_path)
    assert [rank.told for rank in ranks] == ["ok"] * 3, [rank.warned for rank in ranks]
    assert [rank.warned.count(_SLOWER.format(why)) for rank in ranks] == [1, 0, 0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("what", "why"),
    variants(
        ("dead before a sum", _DEAD),
        nightly=[("dead in a sum", _LOST), ("dead before a send", _DEAD)],
    ),
)
def test_all_ranks_of_a_host_tell_why(tmp_path: Path, what: str, why: str) -> None:
    _told(_run(what, tmp_path), why)


@pytest.mark.nightly
def test_a_rank_without_descriptors_is_named(tmp_path: Path) -> None:
    ranks = _run("few descriptors", tmp_path)
    _told(ranks, "rank 1")
    assert "(ulimit -n)" in ranks[1].told  # of the one that it lacked for a connection, or for accepting one


@pytest.mark.nightly
def test_a_rank_without_threads_is_named(tmp_path: Path) -> None:
    ranks = _run("no more threads", tmp_path)
    _told([ranks[0], ranks[2]], "rank 1 could not make this group: can't start new thread")
    assert ranks[1].told == "can't start new thread"


@pytest.mark.nightly
def test_ranks_of_a_ring_name_the_one_that_failed_first(tmp_path: Path) -> None:
    """Each sees its neighbour fail, one after the other."""
    ranks = _run("dead later", tmp_path, size=5)
    _told(ranks, "lost rank 1")
    assert any("failed: allreduce: rank" in rank.told for rank in ranks)


@pytest.mark.parametrize(
    ("what", "why"),
    variants(("dead in a sum", _LOST), nightly=[("dead before a sum", _DEAD), ("dead before a send", _DEAD)]),
)
def test_ranks_of_another_host_tell_why(tmp_path: Path, what: str, why: str) -> None:
    with _two_hosts() as hosts:
        _told(_run(what, tmp_path, hosts, "link0"), why)


@pytest.mark.nightly
def test_hosts_without_a_common_address_family_say_so(tmp_path: Path) -> None:
    with _two_hosts("fd00::2/64") as hosts:
        ranks = _run("sum", tmp_path, hosts, "link0")
    _told(ranks, "Network is unreachable.*NCCL_SOCKET_FAMILY")
    assert "rank 1" in ranks[1].told


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["collectives", "collectives without connect"])
def test_pods_of_two_hosts(tmp_path: Path, what: str) -> None:
    """Four ranks of each host, each with users, processes, IPC and mounts of its own; they may refuse memory."""
    pod = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc"]
    with _two_hosts() as hosts, contextlib.ExitStack() as cleanup:
        ranks = []
        for rank in range(8):
            ranks.append(_Rank(what, tmp_path, rank, 8, hosts[rank // 4], "link0", pod))
            cleanup.callback(ranks[-1].process.wait)
            cleanup.callback(ranks[-1].process.kill)
        for each in ranks:
            each.process.wait(2 * _SECONDS)
    assert [each.told for each in ranks] == ["ok"] * 8, [each.warned for each in ranks]
    assert (_SLOWER.format(" (Permission denied)") in ranks[0].warned) == ("without" in what)


@pytest.mark.nightly
def test_the_interface_that_gloo_would_take(tmp_path: Path) -> None:
    with _first_leads_nowhere() as hosts:
        ranks = _run("sum", tmp_path, hosts, "GLOO_SOCKET_IFNAME=link1")
    assert [rank.told for rank in ranks] == ["ok"] * 3, [rank.warned for rank in ranks]
    said = "GLOO_SOCKET_IFNAME=link1 chooses the interface, since NCCL_SOCKET_IFNAME is not set"
    assert [said in rank.warned for rank in ranks] == [True, False, False]


def test_that_nothing_is_encrypted_is_told_who_asks_gloo_for_it(tmp_path: Path) -> None:
    rank = _Rank("sum", tmp_path, 0, 1, chosen="GLOO_DEVICE_TRANSPORT=TCP_TLS")
    assert rank.process.wait(_SECONDS) == 0
    assert "GLOO_DEVICE_TRANSPORT=TCP_TLS is gloo's alone: BAGUA_NET_ENCRYPT encrypts here" in rank.warned


@pytest.mark.nightly
def test_hosts_whose_addresses_are_not_those_of_their_cards(tmp_path: Path) -> None:
    """As where hosts speak BGP with their switches: packets leave through another interface than the one that has the
    address."""
    with _two_hosts() as hosts:
        for number, host in enumerate(hosts, 1):
            host.ip("address", "add", f"10.99.0.{number}/32", "dev", "lo")
            host.ip("route", "add", f"10.99.0.{3 - number}/32", "via", f"10.79.0.{3 - number}")
        ranks = _run("sum", tmp_path, hosts, "lo")
    assert [rank.told for rank in ranks] == ["ok"] * 3, [rank.warned for rank in ranks]
    assert not any("still connecting" in rank.warned for rank in ranks)


@pytest.mark.nightly
def test_hosts_with_one_address_say_so(tmp_path: Path) -> None:
    """As those of bridges for containers are."""
    with _two_hosts() as hosts:
        for host in hosts:
            host.ip("link", "add", "mybridge", "type", "veth", "peer", "name", "container")
            for link in ("mybridge", "container"):
                host.ip("link", "set", link, "up")
            host.ip("address", "add", "172.30.0.1/16", "dev", "mybridge")
        ranks = _run("sum", tmp_path, hosts, "mybridge")
    _told(ranks, r"has this host's address as well.*NCCL_SOCKET_IFNAME")


def test_the_interface_that_leads_to_the_master_is_used(tmp_path: Path) -> None:
    with _first_leads_nowhere() as hosts:
        ranks = _run("sum", tmp_path, hosts, "MASTER_ADDR=10.79.0.1")
    assert [rank.told for rank in ranks] == ["ok"] * 3, [rank.warned for rank in ranks]


@pytest.mark.gate
def test_a_rank_whose_address_is_gone_says_so(tmp_path: Path) -> None:
    """Between two groups, as when a lease ends."""
    with _two_hosts() as hosts:
        ranks = _run("lost address", tmp_path, hosts, "link0")
    _told(ranks, r"link0 \(10\.79\.0\.2\).*lost this address")


def test_what_files_of_nccl_set_counts(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_SOCKET_IFNAME=nosuch0\n")
    rank = _Rank("sum", tmp_path, 0, 1, chosen=f"HOME={tmp_path}")
    assert rank.process.wait(_SECONDS) == 1
    assert "NCCL_SOCKET_IFNAME=nosuch0" in rank.warned


def _told(ranks: Sequence[_Rank], why: str) -> None:
    """By each that has not ended by itself."""
    for rank in ranks:
        if rank.process.returncode != 0:
            assert re.search(why, rank.told), rank.told
            assert "bagua_net, group" in rank.told
    assert sum(rank.process.returncode != 0 for rank in ranks) >= 2
