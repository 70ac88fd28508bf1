# SPDX-License-Identifier: MIT
"""`bagua-net doctor --peers`: hosts with one fault between them, and what is said of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.support import drivers, netns
from tests.support.netns import Host

pytestmark = pytest.mark.gate

_SECONDS = 120
Findings = dict[str, dict[str, str]]


def _command(host: Host, *arguments: str) -> list[str]:
    return [*host.prefix, sys.executable, "-m", "bagua_net", "doctor", "--json", *arguments]


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Without the usual loopback interface."""
    return {
        name: value
        for name, value in drivers.environment(settings).items()
        if name != "NCCL_SOCKET_IFNAME" or name in settings
    }


def _findings(done: subprocess.CompletedProcess[str]) -> Findings:
    assert done.stderr == ""
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode == int(any(each["verdict"] == "fail" for each in found.values()))
    return found


def examine(one: Host, other: Host, *options: str, **settings: str) -> Findings:
    """What the one finds about the other: the names in the findings are "one" and "other"."""
    command = _command(one, "--peers", other.name, "--through", "ip netns exec", *(options or ["--no-rates"]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=_environment(settings))
    here = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
    named = done.stdout.replace(other.name, "other").replace(f"{here} ", "one ").replace(f" {here}", " one")
    return _findings(subprocess.CompletedProcess(command, done.returncode, named, done.stderr))


@pytest.fixture
def joined() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a link, which takes no processor to fill."""
    with netns.two_hosts() as (one, other):
        one.ip("address", "add", "10.9.0.1/24", "dev", "link0")
        other.ip("address", "add", "10.9.0.2/24", "dev", "link0")
        for host in (one, other):
            host.cap_link("link0", 80)
        yield one, other


_TO, _FROM = "one → other", "other → one"


def test_hosts_that_reach_each_other(joined: tuple[Host, Host]) -> None:
    found = examine(*joined, "--rates")
    assert found[_TO]["verdict"] == found[_FROM]["verdict"] == "ok"
    assert "link0 10.9.0.1 → 10.9.0.2 in " in found[_TO]["fact"]
    for name in (f"{_TO}: rate", f"{_FROM}: rate"):
        assert found[name]["fact"].startswith("flows 1: ")
        assert "one flow carries what the path carries" in found[name]["fact"]
    assert {each["verdict"] for name, each in found.items() if "→" in name} == {"ok"}


def test_a_limit_for_each_flow(joined: tuple[Host, Host]) -> None:
    """Twelve classes of 40 Mbit/s, one way."""
    joined[0].tc("qdisc", "del", "dev", "link0", "root")
    joined[0].cap_flows("link0", [40] * 12, seed=5)
    found = examine(*joined, "--rates")
    assert "flows 1: 3" in found[f"{_TO}: rate"]["fact"]
    assert "a limit for each flow" in found[f"{_TO}: rate"]["fact"]
    assert "a limit for each flow" not in found[f"{_FROM}: rate"]["fact"]
    assert found[f"{_TO}: directions"]["verdict"] == "warn"


def test_a_firewall_that_drops_in_one_direction(joined: tuple[Host, Host]) -> None:
    joined[1].nft(
        "table inet wall { chain in { type filter hook input priority 0; tcp flags & (syn | ack) == syn drop\n}\n}\n"
    )
    found = examine(*joined)
    assert found[_TO]["verdict"] == "fail"
    assert "10.9.0.1 → 10.9.0.2: no answer (the other direction passes)" in found[_TO]["fact"]
    assert "a firewall of other, or between" in found[_TO]["fix"]
    assert found[_FROM]["verdict"] == "ok"


def test_a_firewall_that_rejects(joined: tuple[Host, Host]) -> None:
    joined[1].nft(
        "table inet wall { chain in { type filter hook input priority 0; "
        "tcp flags & (syn | ack) == syn reject with tcp reset\n}\n}\n"
    )
    assert "refused" in examine(*joined)[_TO]["fact"]


def test_a_firewall_that_knows_the_range_of_ports_only(joined: tuple[Host, Host]) -> None:
    joined[1].nft(
        "table inet wall { chain in { type filter hook input priority 0; "
        "tcp flags & (syn | ack) == syn tcp dport != 20000-20100 drop\n}\n}\n"
    )
    found = examine(*joined, BAGUA_NET_PORT_RANGE="20000-20100")
    assert found[_TO]["verdict"] == "ok"
    assert found[f"{_TO}: NCCL's ports"]["verdict"] == "fail"
    assert f"{_FROM}: NCCL's ports" not in found


def test_hosts_without_a_route() -> None:
    with netns.two_hosts() as (one, other):
        one.ip("address", "add", "10.9.0.1/24", "dev", "link0")
        other.ip("address", "add", "10.8.0.2/24", "dev", "link0")
        found = examine(one, other)
    assert found[_TO]["verdict"] == found[_FROM]["verdict"] == "fail"
    assert "link0 10.9.0.1 → 10.8.0.2: no route" in found[_TO]["fact"]


def test_families_that_do_not_meet(joined: tuple[Host, Host]) -> None:
    joined[1].ip("address", "del", "10.9.0.2/24", "dev", "link0")
    joined[1].ip("address", "add", "fd00::2/64", "dev", "link0", "nodad")
    assert "other: IPv6 only" in examine(*joined)[_TO]["fact"]


def test_an_interface_that_leads_nowhere(joined: tuple[Host, Host]) -> None:
    """Each host has a network of its own beside the common one, with the same addresses."""
    for host in joined:
        host.ip("link", "add", "own0", "type", "veth", "peer", "name", "own1")
        host.ip("address", "add", "172.17.0.1/16", "dev", "own0")
        for name in ("own0", "own1"):
            host.ip("link", "set", name, "up")
    found = examine(*joined, NCCL_SOCKET_IFNAME="own0,link0")
    assert found[_TO]["verdict"] == "warn"
    assert "own0 (172.17.0.1) of one reaches nothing there" in found[_TO]["fact"]
    assert "NCCL_SOCKET_IFNAME=link0" in found[_TO]["fix"]
    only = examine(*joined, NCCL_SOCKET_IFNAME="own0")
    assert only[_TO]["verdict"] == "fail"


def test_interfaces_with_other_names(joined: tuple[Host, Host]) -> None:
    joined[1].ip("link", "set", "link0", "down")
    joined[1].ip("link", "set", "link0", "name", "ens5")
    joined[1].ip("link", "set", "ens5", "up")
    while not joined[1].is_up("ens5"):
        time.sleep(0.01)
    assert "NCCL_SOCKET_IFNAME=ens5,link0" in examine(*joined)["interface names"]["fact"]


def test_large_packets_that_vanish() -> None:
    """A router in the middle has a smaller MTU behind it, and a firewall drops what it says about that."""
    with netns.hosts(3) as (one, router, other):
        netns.join(one, router, "link0", "left")
        netns.join(router, other, "right", "link0")
        one.ip("address", "add", "10.9.0.1/24", "dev", "link0")
        router.ip("address", "add", "10.9.0.254/24", "dev", "left")
        router.ip("address", "add", "10.8.0.254/24", "dev", "right")
        other.ip("address", "add", "10.8.0.2/24", "dev", "link0")
        one.ip("route", "add", "default", "via", "10.9.0.254")
        other.ip("route", "add", "default", "via", "10.8.0.254")
        router.sysctl("net.ipv4.ip_forward=1")
        router.ip("link", "set", "right", "mtu", "1400")
        router.nft("table inet wall { chain out { type filter hook output priority 0; meta l4proto icmp drop\n}\n}\n")
        found = examine(one, other)
    assert found[_TO]["verdict"] == "ok"
    assert found[f"{_TO}: MTU"]["verdict"] == "fail"
    assert "packets of the MTU, 1500, do not arrive, those of 1400 do" in found[f"{_TO}: MTU"]["fact"]


def test_addresses_that_are_translated() -> None:
    """The one host is behind another one that gives its own address for it."""
    with netns.hosts(3) as (one, router, other):
        netns.join(one, router, "link0", "left")
        netns.join(router, other, "right", "link0")
        one.ip("address", "add", "10.9.0.1/24", "dev", "link0")
        router.ip("address", "add", "10.9.0.254/24", "dev", "left")
        router.ip("address", "add", "10.8.0.254/24", "dev", "right")
        other.ip("address", "add", "10.8.0.2/24", "dev", "link0")
        one.ip("route", "add", "default", "via", "10.9.0.254")
        router.sysctl("net.ipv4.ip_forward=1")
        router.nft(
            'table ip nat { chain out { type nat hook postrouting priority 100; oifname "right" masquerade\n}\n}\n'
        )
        found = examine(one, other)
    assert "other sees 10.9.0.1 as 10.8.0.254" in found[f"{_TO}: addresses"]["fact"]
    assert found[f"{_TO}: addresses"]["verdict"] == "fail"
    assert found[_FROM]["verdict"] == "fail"


def test_the_same_command_on_each_host(joined: tuple[Host, Host]) -> None:
    processes = [
        subprocess.Popen(
            _command(host, "--rendezvous", "10.9.0.1:29500", "--rank", str(rank), "--ranks", "2", "--no-rates"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment({}),
        )
        for rank, host in enumerate(joined)
    ]
    (said, errors), (silent, _) = (process.communicate(timeout=_SECONDS) for process in processes)
    found = _findings(subprocess.CompletedProcess([], processes[0].returncode, said, errors))
    assert {each["verdict"] for name, each in found.items() if "→" in name} == {"ok"}
    assert sum("→" in name for name in found) == 2
    assert (json.loads(silent), processes[1].returncode) == ([], 0)


@pytest.mark.parametrize(
    ("through", "said"),
    [
        ("ip netns exec {} env -u PYTHONPATH false", "its command ended with status 1"),
        ("no-such-command", "cannot run no-such-command"),
        ("sh -c 'echo kex_exchange: refused >&2; exit 255'", "kex_exchange: refused"),
    ],
)
def test_a_host_that_cannot_be_asked(joined: tuple[Host, Host], through: str, said: str) -> None:
    command = _command(joined[0], "--peers", joined[1].name, "--through", through)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=_environment({}))
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert joined[1].name in done.stdout + done.stderr
