# SPDX-License-Identifier: MIT
"""`bagua-net doctor --peers`: hosts with one fault between them, and what is said of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bagua_net import plugin_path
from tests.package import nccl_here
from tests.package.bench_command import bench
from tests.support import drivers, nccl_wheels, netns
from tests.support.netns import Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_SECONDS = 120
_TAKES_THE_PORT = """
import socket
listener = socket.create_server(("", 20000))
print("listens", flush=True)
input()
"""
Findings = dict[str, dict[str, Any]]


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


def examine(one: Host, other: Host, /, *options: str, **settings: str) -> Findings:
    """What the one finds about the other: the names in the findings are "one" and "other"."""
    command = _command(one, "--peers", other.name, "--through", "ip netns exec", *(options or ["--no-rates"]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=_environment(settings))
    named = _named(done.stdout, one, other)
    return _findings(subprocess.CompletedProcess(command, done.returncode, named, done.stderr))


def _named(text: str, one: Host, other: Host) -> str:
    """All namespaces have this host's name."""
    here = re.escape(os.uname().nodename)
    return re.sub(rf"(?<=[\" ]){here}(?=[ :,\"])", "one", text).replace(other.name, "other").replace(one.name, "one")


def _await(true: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def _wall(rule: str) -> str:
    """Rules that meet what opens a connection."""
    return (
        "table inet wall { chain in { type filter hook input priority 0; "
        f"tcp flags & (syn | ack) == syn {rule}\n}}\n}}\n"
    )


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


def test_hosts_that_reach_each_other(joined: tuple[Host, Host], tmp_path: Path) -> None:
    found = examine(*joined, "--rates")
    _check_calculation_of(found, tmp_path)
    assert found[_TO]["verdict"] == found[_FROM]["verdict"] == "ok"
    assert "link0 10.9.0.1 → 10.9.0.2 in " in found[_TO]["fact"]
    for name in (f"{_TO}: rate", f"{_FROM}: rate"):
        assert found[name]["fact"].startswith("1 flow ")
        assert "one flow carries what the path carries" in found[name]["fact"]
    found = {name: each for name, each in found.items() if not name.endswith((": rate", ": directions"))}
    assert {each["verdict"] for name, each in found.items() if "→" in name} == {"ok"}


def _check_calculation_of(found: Findings, directory: Path) -> None:
    """`bagua-net bench calculate` takes the lower rate of both directions."""
    findings, file = directory / "findings.json", directory / "calculated.json"
    findings.write_text(json.dumps(list(found.values())))
    options = ["--model", "gpt2", "--measured", str(findings), "--json", str(file)]
    done = bench("calculate", *options)
    assert done.returncode == 0, done.stderr
    rates = [each["bytes_per_second"] for name, each in found.items() if name.endswith(": rate")]
    assert len(rates) == 2
    assert json.loads(file.read_text())["calculated"]["link"]["bytes_per_s"] == min(rates) > 0


def test_a_limit_for_each_flow(joined: tuple[Host, Host]) -> None:
    """Twelve classes of 40 Mbit/s, one way."""
    joined[0].tc("qdisc", "del", "dev", "link0", "root")
    joined[0].cap_flows("link0", [40] * 12, seed=5)
    found = examine(*joined, "--rates")
    assert 20 < float(re.findall(r"^1 flow ([\d.]+) Mbit/s", found[f"{_TO}: rate"]["fact"])[0]) < 60
    assert "a limit for each flow" in found[f"{_TO}: rate"]["fact"]
    assert "a limit for each flow" not in found[f"{_FROM}: rate"]["fact"]


def test_a_firewall_that_drops_in_one_direction(joined: tuple[Host, Host]) -> None:
    joined[1].nft(_wall("drop"))
    found = examine(*joined)
    assert found[_TO]["verdict"] == "fail"
    assert "10.9.0.1 → 10.9.0.2: no answer (the other direction passes)" in found[_TO]["fact"]
    assert "the firewall of other, or one between" in found[_TO]["fix"]
    assert found[_FROM]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("how", "said"), variants(("icmpx type admin-prohibited", "rejected"), nightly=[("tcp reset", "refused")])
)
def test_a_firewall_that_rejects(joined: tuple[Host, Host], how: str, said: str) -> None:
    joined[1].nft(_wall(f"reject with {how}"))
    found = examine(*joined)[_TO]
    assert said in found["fact"]
    assert "the firewall of other, or one between" in found["fix"]


def test_a_firewall_that_lets_nothing_through_but_the_handshake(joined: tuple[Host, Host]) -> None:
    """It ends connections whose packets are large."""
    joined[1].nft(
        "table inet wall { chain in { type filter hook input priority 0; "
        "meta l4proto tcp meta length > 500 reject with tcp reset\n}\n}\n"
    )
    found = examine(*joined)
    assert found[_TO]["verdict"] == "ok"
    assert found[f"{_TO}: MTU"]["verdict"] == "fail"
    assert "it connects, and no data arrives" in found[f"{_TO}: MTU"]["fact"]


def test_a_firewall_that_knows_the_range_of_ports_only(joined: tuple[Host, Host]) -> None:
    joined[1].nft(_wall("tcp dport != 20000-20100 drop"))
    found = examine(*joined, BAGUA_NET_PORT_RANGE="20000-20100")
    assert found[_TO]["verdict"] == "ok"
    assert found[f"{_TO}: NCCL's ports"]["verdict"] == "fail"
    assert f"{_FROM}: NCCL's ports" not in found


def test_a_range_of_ports_that_a_job_has(joined: tuple[Host, Host]) -> None:
    job = [*joined[1].prefix, sys.executable, "-c", _TAKES_THE_PORT]
    with subprocess.Popen(job, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == b"listens\n"
        found = examine(*joined, BAGUA_NET_PORT_RANGE="20000-20000")
        taker.kill()
    assert "other cannot listen at 10.9.0.2: no port of 20000-20000 is free" in found[_TO]["fact"]
    assert found[_FROM]["verdict"] == "ok"


@pytest.mark.nightly
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
    assert "one: IPv4; other: IPv6 only" in examine(*joined)[_TO]["fact"]


def test_an_interface_that_leads_nowhere(joined: tuple[Host, Host]) -> None:
    """Each host has a network of its own beside the common one, with the same addresses."""
    for host in joined:
        host.ip("link", "add", "own0", "type", "veth", "peer", "name", "own1")
        host.ip("address", "add", "172.17.0.1/16", "dev", "own0")
        for name in ("own0", "own1"):
            host.ip("link", "set", name, "up")
    found = examine(*joined, NCCL_SOCKET_IFNAME="own0,link0")
    assert found[_TO]["verdict"] == "warn"
    assert "own0 (172.17.0.1) of other is not reached: one has that address as well" in found[_TO]["fact"]
    assert "on one NCCL_SOCKET_IFNAME==link0" in found[_TO]["fix"]
    only = examine(*joined, NCCL_SOCKET_IFNAME="own0")
    assert only[_TO]["verdict"] == "fail"
    assert "172.17.0.1 of other (own0): one has it as well" in only[_TO]["fact"]


def test_interfaces_with_other_names(joined: tuple[Host, Host]) -> None:
    joined[1].ip("link", "set", "link0", "down")
    joined[1].ip("link", "set", "link0", "name", "ens5")
    joined[1].ip("link", "set", "ens5", "up")
    _await(lambda: joined[1].is_up("ens5"))
    assert "NCCL_SOCKET_IFNAME==ens5,link0" in examine(*joined)["interface names"]["fact"]
    for host, name, address in ((joined[0], "link0", "fe80::1/64"), (joined[1], "ens5", "fe80::2/64")):
        host.ip("address", "add", address, "dev", name, "nodad")
    found = examine(*joined, NCCL_SOCKET_FAMILY="AF_INET6")
    assert "link0 fe80::1%link0 → fe80::2%ens5 in " in found[_TO]["fact"]


@contextlib.contextmanager
def _routed() -> Iterator[tuple[Host, Host, Host]]:
    """Two hosts and a router between them, by which the first one knows its way to the other."""
    with netns.hosts(3) as (one, router, other):
        netns.join(one, router, "link0", "left")
        netns.join(router, other, "right", "link0")
        one.ip("address", "add", "10.9.0.1/24", "dev", "link0")
        router.ip("address", "add", "10.9.0.254/24", "dev", "left")
        router.ip("address", "add", "10.8.0.254/24", "dev", "right")
        other.ip("address", "add", "10.8.0.2/24", "dev", "link0")
        one.ip("route", "add", "default", "via", "10.9.0.254")
        router.sysctl("net.ipv4.ip_forward=1")
        yield one, router, other


def test_large_packets_that_vanish() -> None:
    """A router in the middle has a smaller MTU behind it, and a firewall drops what it says about that."""
    with _routed() as (one, router, other):
        other.ip("route", "add", "default", "via", "10.8.0.254")
        router.ip("link", "set", "right", "mtu", "1400")
        router.nft("table inet wall { chain out { type filter hook output priority 0; meta l4proto icmp drop\n}\n}\n")
        found = examine(one, other)
    assert found[_TO]["verdict"] == "ok"
    assert found[f"{_TO}: MTU"]["verdict"] == "fail"
    assert "packets of 1500 bytes do not arrive, those of 1400 do" in found[f"{_TO}: MTU"]["fact"]


def test_addresses_that_are_translated() -> None:
    """The one host is behind another one that gives its own address for it."""
    with _routed() as (one, router, other):
        router.nft(
            'table ip nat { chain out { type nat hook postrouting priority 100; oifname "right" masquerade\n}\n}\n'
        )
        found = examine(one, other)
    assert "other sees 10.9.0.1 as 10.8.0.254" in found[f"{_TO}: addresses"]["fact"]
    assert found[f"{_TO}: addresses"]["verdict"] == "fail"
    assert found[_FROM]["verdict"] == "fail"
    assert found[_FROM]["fix"] == f"see the addresses of {_TO}"


@pytest.mark.nightly
def test_a_host_that_is_named_twice(joined: tuple[Host, Host]) -> None:
    """The first one is among those that it examines, as in a file of all hosts."""
    one, other = joined
    command = _command(one, "--no-rates", "--through", "ip netns exec", "--peers", f"{other.name},{one.name}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=_environment({}))
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found[one.name]["fact"] == f"it is {os.uname().nodename}"
    assert sum("→" in name for name in found) == 2
    assert done.returncode == 0


def _start_all(joined: tuple[Host, Host], *options: str, **settings: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            _command(
                host, "--rendezvous", "10.9.0.1:29500", "--rank", str(rank), "--ranks", "2", "--no-rates", *options
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(settings),
        )
        for rank, host in enumerate(joined)
    ]


@pytest.mark.parametrize("closed", variants(True, nightly=[False]))
def test_the_same_command_on_each_host(joined: tuple[Host, Host], closed: bool) -> None:
    if closed:
        joined[1].nft(_wall("drop"))
    processes = _start_all(joined)
    try:
        (said, errors), (silent, note) = (process.communicate(timeout=_SECONDS) for process in processes)
    finally:
        for process in processes:
            process.kill()
    found = _findings(subprocess.CompletedProcess([], processes[0].returncode, said, errors))
    assert sorted(each["verdict"] for name, each in found.items() if "→" in name) == ["fail" if closed else "ok", "ok"]
    assert (silent, note) == ("", "# rank 0 has the findings\n")
    assert processes[1].returncode == processes[0].returncode == int(closed)


def test_a_rank_that_dies(joined: tuple[Host, Host]) -> None:
    """It is stopped as soon as it has met rank 0, and killed: what was found until then is told."""
    processes = _start_all(joined)
    _await(lambda: "10.9.0.1:29500" in joined[1].socket_details())
    processes[1].kill()
    said, errors = processes[0].communicate(timeout=_SECONDS)
    processes[1].communicate()
    found = _findings(subprocess.CompletedProcess([], processes[0].returncode, said, errors))
    assert found["peers"]["fact"] == "rank 1 left the run"


@pytest.mark.parametrize(
    ("through", "said"),
    variants(
        ("ip netns exec {} sh -c 'exec \"$@\" </dev/null' sh", "kubectl and docker exec have -i for that"),
        ("sh -c 'echo kex_exchange: refused >&2; exit 255'", "kex_exchange: refused"),
        nightly=[
            ("ip netns exec {} env -u PYTHONPATH false", "its command ended with status 1"),
            ("ip netns exec no-such-host", "no-such-host"),
            ("no-such-command", "install bagua_net there at the same path"),
            ("sh -c 'echo bagua-net-peer {; sleep 1'", "cut off, or of another program"),
        ],
    ),
)
def test_a_host_that_cannot_be_asked(joined: tuple[Host, Host], through: str, said: str) -> None:
    """The other one is examined all the same."""
    one, other = joined
    command = _command(one, "--no-rates", "--peers", f"lost,{other.name}", "--through")
    shell = f'if [ $1 = lost ]; then shift; {through.replace("{}", other.name)} "$@"; else exec ip netns exec "$@"; fi'
    words = shlex.join(["sh", "-c", shell, "sh"])
    done = subprocess.run([*command, words], capture_output=True, text=True, timeout=_SECONDS, env=_environment({}))
    found = _findings(done)
    assert found["lost"]["verdict"] == "fail"
    assert said in found["lost"]["fact"] + found["lost"]["fix"]
    assert sum("→" in name for name in found) == 2


def test_a_way_to_hosts_that_is_not_here(joined: tuple[Host, Host]) -> None:
    command = _command(joined[0], "--peers", "lost", "--through", "no-such-command")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=_environment({}))
    assert _findings(done)["lost"]["fact"] == "cannot run no-such-command: No such file or directory"


# ---- a job of the hosts' own NCCL ----

_JOB = ("--no-rates", "--nccl")
_NEWEST = nccl_wheels.VERSIONS[-1]


def _library(version: str = _NEWEST) -> dict[str, str]:
    return {"BAGUA_NET_BENCH_LIBNCCL": str(nccl_wheels.library(version))}


def _check_nothing_left(hosts: tuple[Host, Host]) -> None:
    for host in hosts:
        done = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True, timeout=_SECONDS)
        assert done.stdout == ""


def test_an_allreduce_between_the_hosts(joined: tuple[Host, Host]) -> None:
    before = [host.sent_bytes("link0") for host in joined]
    found = examine(*joined, *_JOB, **_library())
    assert found["NCCL allreduce"]["verdict"] == "ok"
    assert found["NCCL allreduce"]["fact"].startswith(
        "1 MiB of float32 over BaguaNet, every element is right; 2 ranks on 2 hosts; "
    )
    assert not any(name.startswith("NCCL") for name in set(found) - {"NCCL allreduce"})
    for host, sent in zip(joined, before, strict=True):
        assert host.sent_bytes("link0") - sent > 1 << 20  # what a ring of two sends
    _check_nothing_left(joined)


@pytest.mark.nightly
@pytest.mark.parametrize("closed", [0, 1])
def test_a_firewall_that_stops_the_job(joined: tuple[Host, Host], closed: int) -> None:
    """It lets the plugin's ports pass, and not those of NCCL's bootstrap. Who does not reach whom is told."""
    joined[closed].nft(_wall("tcp dport != 20000-20100 drop"))
    found = examine(*joined, *_JOB, BAGUA_NET_PORT_RANGE="20000-20100", **_library())
    there, here = ("one", "other")[closed], ("other", "one")[closed]
    assert found["NCCL init"]["verdict"] == "fail"
    assert f"{here} has no answer from {there} (10.9.0.{closed + 1}, port " in found["NCCL init"]["fact"]
    assert f"the firewall of {there}, or one between, has to let TCP from {here} to " in found["NCCL init"]["fix"]
    assert "NCCL allreduce" not in found
    _check_nothing_left(joined)


@pytest.mark.nightly
def test_a_host_without_nccl(joined: tuple[Host, Host]) -> None:
    """The others' settings are not its own. The rest is examined all the same."""
    without = "ip netns exec {} env BAGUA_NET_BENCH_LIBNCCL=/nowhere/libnccl.so.2"
    found = examine(*joined, *_JOB, "--through", without, **_library())
    assert found["other: NCCL load"]["verdict"] == "fail"
    assert "/nowhere/libnccl.so.2: no such file" in found["other: NCCL load"]["fact"]
    assert found["NCCL"]["fact"] == f"one: NCCL {_NEWEST}; other: no NCCL"
    assert found[_TO]["verdict"] == found[_FROM]["verdict"] == "ok"
    assert "NCCL allreduce" not in found


@pytest.mark.nightly
@pytest.mark.parametrize("there", [True, False])
def test_a_network_of_its_own_on_one_host(joined: tuple[Host, Host], there: bool) -> None:
    """The plugin's rank says what it has met, whichever it is: NCCL's own has an error without a meaning."""
    ours = f"NCCL_NET=BaguaNet NCCL_NET_PLUGIN={plugin_path()}"
    here, other = ({}, "NCCL_NET=Socket") if there else ({"NCCL_NET": "Socket"}, ours)
    found = examine(*joined, *_JOB, "--through", f"ip netns exec {{}} env {other}", **here, **_library())
    assert found["NCCL init"]["verdict"] == "fail"
    assert found["NCCL init"]["fact"].startswith(f"{'one' if there else 'other'} failed: ")
    assert f"the peer at 10.9.0.{1 + there}:" in found["NCCL init"]["fact"]
    assert "uses NCCL's own Socket transport" in found["NCCL init"]["fact"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (nccl_here.KILLED, "other was killed by SIGKILL"),
        ("os.kill(os.getppid(), signal.SIGKILL); signal.pause()", "other: its command ended with status -9"),
    ],
    ids=["rank", "host"],
)
def test_a_rank_or_its_host_dies(joined: tuple[Host, Host], tmp_path: Path, fault: str, said: str) -> None:
    """The other rank, which waits for it, is ended, and is not the cause."""
    faulty = nccl_here.sabotaged(tmp_path, "Comm.all_reduce", fault)
    found = examine(*joined, *_JOB, **faulty, **_library())
    assert found["NCCL allreduce"]["verdict"] == "fail"
    assert found["NCCL allreduce"]["fact"] == said
    _check_nothing_left(joined)


@pytest.mark.nightly
def test_the_same_command_with_a_job(joined: tuple[Host, Host]) -> None:
    """The hosts meet, and rank 0 decides what is done."""
    processes = _start_all(joined, "--nccl", **_library())
    try:
        (said, errors), _ = (process.communicate(timeout=_SECONDS) for process in processes)
    finally:
        for process in processes:
            process.kill()
    found = _findings(subprocess.CompletedProcess([], processes[0].returncode, said, errors))
    assert found["NCCL allreduce"]["verdict"] == "ok"
    _check_nothing_left(joined)
