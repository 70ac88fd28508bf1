# SPDX-License-Identifier: MIT
"""Hosts on one switch, each of which limits every flow that it sends, and all together.

Needs root, iproute2 and nftables; everything lives in private namespaces and disappears with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.networks.namespaces import MTU, Host, await_running, namespace, run

_INTERFACE = "track"
#: Flows are hashed into so many classes: two of sixteen meet in one class on six of ten hosts.
_CLASSES = 128


def _letters(number: int) -> str:
    return f"{chr(ord('a') + number // 26)}{chr(ord('a') + number % 26)}"


def _lay(switch: str, name: str, number: int, congestion_control: str) -> Host:
    run(["ip", "-n", switch, *f"link add p{number} mtu {MTU} type veth peer name {_INTERFACE} netns {name}".split()])
    run(["ip", "-n", switch, *f"link set p{number} master br0 up".split()])
    address = f"10.2.{number // 250}.{number % 250 + 1}"
    run(["ip", "-n", name, *f"address add {address}/16 dev {_INTERFACE}".split()])
    run(["ip", "-n", name, *f"link set {_INTERFACE} mtu {MTU} up".split()])
    route = f"route replace 10.2.0.0/16 dev {_INTERFACE} src {address} congctl {congestion_control}"
    run(["ip", "-n", name, *route.split()])
    return Host(name, _INTERFACE, address)


def _of_host(mbits: float) -> str:
    return f"parent 1: classid 1:1 htb rate {mbits}mbit burst 64k cburst 64k"


def change_host(host: Host, mbits: float) -> None:
    """Limits what the host sends in all to another rate."""
    run(["tc", "-n", host.namespace, *f"class change dev {host.interface} {_of_host(mbits)}".split()])


def _limit(host: Host, flow_mbits: float, host_mbits: float, seed: int) -> None:
    device = f"dev {host.interface}"
    lines = [f"qdisc replace {device} root handle 1: htb default fff"]
    lines.append(f"class add {device} {_of_host(host_mbits)}")
    # Segments without payload do not wait.
    lines.append(f"class add {device} parent 1: classid 1:fff htb rate 10gbit quantum 60000")
    for number in range(_CLASSES):
        least = f"rate 64kbit ceil {flow_mbits}mbit burst 4k cburst 4k quantum 3000"
        lines.append(f"class add {device} parent 1:1 classid 1:{number + 0x100:x} htb {least}")
    run(["tc", "-n", host.namespace, "-batch", "-"], "\n".join(lines) + "\n")
    targets = ", ".join(f"{number} : 1:{number + 0x100:x}" for number in range(_CLASSES))
    script = f"""
table ip track {{
  chain out {{
    type filter hook output priority mangle; policy accept;
    meta l4proto tcp ip length > 80 meta priority set jhash tcp sport . tcp dport mod {_CLASSES} seed {seed:#x} map {{ {targets} }}
  }}
}}
"""  # noqa: E501
    run(["ip", "netns", "exec", host.namespace, "nft", "-f", "-"], script)


@contextmanager
def hosts(count: int, flow_mbits: float, host_mbits: float, congestion_control: str) -> Iterator[list[Host]]:
    """``count`` hosts. A flow, which a random hash chooses, sends at most ``flow_mbits``, a host ``host_mbits``."""
    with ExitStack() as stack:
        switch = stack.enter_context(namespace("switch"))
        run(["ip", "-n", switch, "link", "add", "br0", "type", "bridge"])
        run(["ip", "-n", switch, "link", "set", "br0", "up"])
        made = []
        for number in range(count):
            name = stack.enter_context(namespace(_letters(number)))
            made.append(_lay(switch, name, number, congestion_control))
            _limit(made[-1], flow_mbits, host_mbits, random.getrandbits(32))
        for host in made:
            await_running(host)
        yield made


def sent_bytes(host: Host) -> int:
    """What the host's interface has sent so far."""
    path = f"/sys/class/net/{host.interface}/statistics/tx_bytes"
    return int(run(["ip", "netns", "exec", host.namespace, "cat", path]))
