# SPDX-License-Identifier: MIT
"""A connection that is being made on a network that fails meanwhile, or lets no more streams through, or from a host
without ports."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.steps import DEADLINE, LARGE, LONG, cut, ends, listen, meet, pass_one
from tests.support.netns import Host

pytestmark = pytest.mark.gate


def test_a_lost_welcome_is_asked_for_again(tmp_path: Path) -> None:
    """The receiver's answer to the first HELLO is answered with a reset. The sender's kernel finds that out."""
    with ends(tmp_path, LONG, repair=True) as (sender, receiver):
        handle = listen(receiver)
        first = "meta length > 80 numgen inc mod 1000000 == 0"
        cut(sender.host, f"tcp flags & syn == 0 {first}", "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        meet(sender, receiver)
        pass_one(sender, receiver, 1, LARGE)
        assert "broke" not in sender.log() + receiver.log()


def test_a_link_that_goes_down_late(tmp_path: Path) -> None:
    """It comes up again. That the connection had been refused for longer than it waits for a route does not matter."""
    with ends(tmp_path) as (sender, receiver):
        handle = listen(receiver)
        cut(receiver.host, "tcp flags & syn != 0 counter", "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        sender.until(lambda: receiver.host.packets("cut") > 15)  # each after a longer pause: eight seconds
        sender.host.ip("link", "set", "link0", "down")
        sender.await_log("Network is unreachable")
        sender.host.ip("link", "set", "link0", "up")
        cut(receiver.host, "tcp dport 1", "accept")
        meet(sender, receiver)


def test_streams_that_a_firewall_does_not_let_through_are_told(tmp_path: Path) -> None:
    """Without NCCL_DEBUG, and the connection goes on with those that it has."""
    with ends(tmp_path, LONG, streams=4, settings={"BAGUA_NET_CONNECT_TIMEOUT": 9}) as (sender, receiver):
        handle = listen(receiver)
        further = "tcp flags & syn != 0 numgen inc mod 1000000 > 0"
        cut(receiver.host, further, "reject with tcp reset", ("input",))
        sender.tell(f"connect {handle}")
        meet(sender, receiver)
        told = "NET/BaguaNet: 1 instead of 4 streams to 10.77.0.2"  # on stderr, past the logger
        sender.until(lambda: any(line.startswith(told) for line in sender.log().splitlines()))
        pass_one(sender, receiver, 1, LARGE)


# ---- ports ----

#: The kernel's of a host, and one for a library that listens there.
PORTS = range(40000, 40004)
LISTENER = 50000
LISTENS = {"BAGUA_NET_PORT_RANGE": f"{LISTENER}-{LISTENER + 10}"}
_NONE_FREE = "no port of net.ipv4.ip_local_port_range is free for a stream"
#: What keeps all of them, and what keeps those of the first interface towards the peer, but for one.
_ALL = f"held = [socket.create_server(('', port)) for port in range({PORTS.start}, {PORTS.stop})]"
_FIRST_INTERFACE_S = f"""
held = [socket.socket() for _ in range({2 * len(PORTS) - 1})]
for number, each in enumerate(held):
    each.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    each.bind(("10.77.0.1", 0))
    each.connect(("10.77.0.2" if number < {len(PORTS) - 1} else "10.78.0.2", {LISTENER}))
"""


@contextlib.contextmanager
def _without_ports(host: Host, keeps: str) -> Iterator[subprocess.Popen[str]]:
    """Until its standard input ends."""
    host.sysctl(f"net.ipv4.ip_local_port_range={PORTS.start} {PORTS.stop - 1}")
    program = f"import socket, sys\n{keeps}\nprint('kept', flush=True)\nsys.stdin.read()"
    command = [*host.prefix, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "kept\n"
            yield process
        finally:
            process.kill()


def test_a_host_without_a_free_port_says_so(tmp_path: Path) -> None:
    """The interface, which is not to blame, is not named."""
    with ends(tmp_path, settings=LISTENS) as (sender, receiver), _without_ports(sender.host, _ALL):
        sender.tell(f"connect {listen(receiver)}")
        sender.process.wait(DEADLINE)
        failed = [line for line in sender.log().splitlines() if "cannot connect from link0 (10.77.0.1)" in line]
        assert failed, sender.log()
        assert "this host has no free port left in net.ipv4.ip_local_port_range" in failed[0]
        assert "NCCL_SOCKET_IFNAME" not in failed[0]


def test_a_port_that_is_free_again_is_taken(tmp_path: Path) -> None:
    """By a stream of the same interface."""
    with ends(tmp_path, settings=LISTENS) as (sender, receiver), _without_ports(sender.host, _ALL) as keeper:
        sender.tell(f"connect {listen(receiver)}")
        sender.await_log("INFO", _NONE_FREE, "from link0 (10.77.0.1) to 10.77.0.2")
        keeper.communicate()
        meet(sender, receiver)
        assert "without binding" not in sender.log()


def test_streams_go_where_there_are_ports(tmp_path: Path) -> None:
    """The one that is left from the first interface is the first stream's."""
    with ends(tmp_path, LONG, streams=4, links=2, settings=LISTENS) as (sender, receiver):
        handle = listen(receiver)
        with _without_ports(sender.host, _FIRST_INTERFACE_S):
            sender.tell(f"connect {handle}")
            meet(sender, receiver)
            sender.until(lambda: sender.host.socket_details().count("10.78.0.1") == 3)
            sender.await_log("INFO", _NONE_FREE, "from link0 (10.77.0.1) to 10.77.0.2")
            pass_one(sender, receiver, 1, LARGE)
