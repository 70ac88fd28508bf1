# SPDX-License-Identifier: MIT
"""One bottleneck for several pairs of processes: that of the senders' common host, or that of the receivers'.

The queue is half a megabyte, or one of that size for each flow (a hash of 256). Flow classes may lie before it. Needs
root, iproute2 and nftables; everything lives in private namespaces and disappears with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.networks.namespaces import MTU, Host, Hosts, await_running, namespace, run, veth

_QUEUE_BYTES = 500_000
_FAIR_QUEUES = 256
_ALL = "1:1"
_REST = "1:fff"
#: A socket that has carried less is a handshake or a question.
_LEAST_BYTES = 1000


@dataclass(frozen=True)
class Port:
    """An outgoing side that is shaped."""

    namespace: str
    interface: str
    forwarded: bool
    """The packets come from other hosts."""


@dataclass(frozen=True)
class Shared:
    """A bottleneck and the pairs of hosts that share it."""

    pairs: list[Hosts]
    """Sender and receiver of each pair; either is the same host for all pairs."""
    ports: list[Port]
    common: str
    """The namespace in which all sockets of one side are."""

    def dropped(self) -> int:
        """Packets that the bottleneck has dropped so far, in all directions that it limits."""
        return sum(_dropped(port) for port in self.ports)

    def streams(self) -> int:
        """Connected sockets that have carried data, those of both directions."""
        listed = run(["ip", "netns", "exec", self.common, "ss", "-tinHO", "state", "established"])
        counts = [re.findall(r"bytes_(?:sent|received):(\d+)", row) for row in listed.splitlines()]
        return sum(any(int(count) > _LEAST_BYTES for count in row) for row in counts)


def _dropped(port: Port) -> int:
    shown = json.loads(run(["tc", "-n", port.namespace, "-s", "-j", "qdisc", "show", "dev", port.interface]))
    return sum(int(row["drops"]) for row in shown if row["kind"] == "bfifo")


def _queue(lines: list[str], device: str, handle: str, rate: int, ceiling: int) -> None:
    lines.append(
        f"class add {device} parent {_ALL} classid {handle} htb rate {rate}mbit ceil {ceiling}mbit quantum 3000"
    )
    lines.append(f"qdisc add {device} parent {handle} bfifo limit {_QUEUE_BYTES}")


def _shape(port: Port, mbit: int, fair: bool, classes_mbits: Sequence[int]) -> None:
    """Everything shares one rate; below it there are flow classes, a queue for each flow, or one queue."""
    device = f"dev {port.interface}"
    rates = list(classes_mbits) or [mbit] * (_FAIR_QUEUES if fair else 0)
    lines = [f"qdisc replace {device} root handle 1: htb default {_REST[2:]}"]
    lines.append(f"class add {device} parent 1: classid {_ALL} htb rate {mbit}mbit quantum 60000")
    # What no flow class takes, such as acknowledgements: with less, they would wait for seconds behind full classes.
    _queue(lines, device, _REST, mbit, mbit)
    for number, rate in enumerate(rates):
        least = max(1, min(rate, mbit // len(rates)))
        _queue(lines, device, f"1:{number + 0x100:x}", least, rate)
    run(["tc", "-n", port.namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _hash_flows(port: Port, queues: int, seed: int) -> None:
    """Segments without payload do not wait: they go by the class for the rest."""
    targets = ", ".join(f"{number} : 1:{number + 0x100:x}" for number in range(queues))
    flow = "ip saddr . tcp sport . ip daddr . tcp dport"
    script = f"""
table ip shared
delete table ip shared
table ip shared {{
  chain out {{
    type filter hook {"forward" if port.forwarded else "output"} priority mangle; policy accept;
    oifname "{port.interface}" meta l4proto tcp ip length > 80 meta priority set jhash {flow} mod {queues} seed {seed:#x} map {{ {targets} }}
  }}
}}
"""  # noqa: E501
    run(["ip", "netns", "exec", port.namespace, "nft", "-f", "-"], script)


def hash_flows(shared: Shared, fair: bool, classes: int, seed: int) -> None:
    """Sends every TCP flow through one of the queues or classes, by a hash with this seed (32 bits)."""
    queues = classes or (_FAIR_QUEUES if fair else 0)
    for port in shared.ports if queues else ():
        _hash_flows(port, queues, seed)


def _lay(router: str, host: str, number: int, congestion_control: str) -> Host:
    """A cable from the router to a host, which reaches everything else by it."""
    interface, subnet = f"track{number}", f"10.1.{number}"
    cable = f"link add {interface} mtu {MTU} type veth peer name track mtu {MTU} netns {host}"
    run(["ip", "-n", router, *cable.split()])
    for name, end, device in ((router, f"{subnet}.1", interface), (host, f"{subnet}.2", "track")):
        run(["ip", "-n", name, "address", "add", f"{end}/24", "dev", device])
        run(["ip", "-n", name, "link", "set", device, "up"])
    run(["ip", "-n", host, *f"route replace default via {subnet}.1 congctl {congestion_control}".split()])
    made = Host(host, "track", f"{subnet}.2")
    await_running(made)
    return made


@contextmanager
def at_sender(
    pairs: int, mbit: int, fair: bool, classes_mbits: Sequence[int], congestion_control: str
) -> Iterator[Shared]:
    """All senders on one host, all receivers on another: either direction of the cable between them is a bottleneck."""
    with veth(congestion_control) as hosts:
        ports = [Port(host.namespace, host.interface, forwarded=False) for host in hosts]
        for port in ports:
            _shape(port, mbit, fair, classes_mbits)
        yield Shared([hosts] * pairs, ports, hosts[0].namespace)


@contextmanager
def at_receiver(
    pairs: int, mbit: int, fair: bool, classes_mbits: Sequence[int], congestion_control: str
) -> Iterator[Shared]:
    """Each sender on its own host and all receivers on one, behind a router whose port to it is the bottleneck. Its
    ports to the senders have the same rate, and a queue each."""
    with ExitStack() as stack:
        router, receiver = (stack.enter_context(namespace(name)) for name in ("router", "receiver"))
        run(["ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
        common = _lay(router, receiver, 0, congestion_control)
        ports = [Port(router, "track0", forwarded=True)]
        _shape(ports[0], mbit, fair, classes_mbits)
        laid: list[Hosts] = []
        for number in range(pairs):
            host = stack.enter_context(namespace(f"sender{chr(ord('a') + number)}"))
            laid.append((_lay(router, host, number + 1, congestion_control), common))
            _shape(Port(router, f"track{number + 1}", forwarded=True), mbit, False, ())
        yield Shared(laid, ports, receiver)


PLACES = {"sender": at_sender, "receiver": at_receiver}
