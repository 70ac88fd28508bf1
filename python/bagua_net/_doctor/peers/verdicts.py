# SPDX-License-Identifier: MIT
"""What follows from the facts of several hosts, from the answers between them, and from the rates of their flows."""

from __future__ import annotations

from collections.abc import Sequence

from ..check import Check, Checks
from .facts import Facts, Reach
from .probe import Answer, Rate

#: Certificates, and log lines that are compared.
_CLOCK_S = 1.0
#: More flows carry so many times more: each is limited by itself. Without such a limit several flows carried up to 1.3
#: times one between two busy hosts, with a processor each.
_GAIN = 1.6
_LOSSES = 0.01
_HALF = 0.5
#: Of the processors that the flows could use.
_BUSY = 0.85
#: AWS, "Amazon EC2 instance network bandwidth"; Google Cloud, "Network bandwidth", of Compute Engine.
_CLOUDS = {
    "Amazon EC2": "AWS carries 5 Gbit/s a flow, 10 within a cluster placement group, 25 with ENA Express",
    "Google": "Google Cloud limits the machine, by its type: further network cards add nothing",
}


# ---- each host, and all of them ----


def own(hosts: Sequence[Facts]) -> Checks:
    """What `bagua-net doctor` finds on each."""
    for host in hosts:
        for each in host.findings:
            name = f"{host.name}: {each['name']}"
            yield Check(name, "fail" if each["verdict"] == "fail" else "warn", each["fact"], each["fix"])


def _listed(values: Sequence[tuple[str, str]]) -> str:
    """ "a and b have 1, c has 2"."""
    groups: dict[str, list[str]] = {}
    for host, value in values:
        groups.setdefault(value, []).append(host)
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in groups.items())


def agreement(hosts: Sequence[Facts]) -> Checks:
    """A job needs the same on all of them."""
    versions = [(host.name, f"bagua_net {host.version}") for host in hosts]
    if len({each.version for each in hosts}) > 1:
        yield Check("versions", "warn", _listed(versions), "install the same version on all hosts")
    else:
        yield Check("versions", "ok", versions[0][1])
    if len({each.on for each in hosts}) > 1:
        off = next(each for each in hosts if not each.on)
        states = _listed([(host.name, "on" if host.on else "off") for host in hosts])
        fix = "`bagua-net enable` on all of them, or none; with `run` or `activate()` it needs no file"
        yield Check("activation", "fail", f"{states} ({off.problem.partition('; ')[0]})", fix)
    nccls = [(host.name, host.nccl or "no NCCL") for host in hosts]
    if len({each.nccl for each in hosts}) > 1:
        yield Check("NCCL", "warn", _listed(nccls), "the same NCCL on all hosts: a job's ranks must have one")


def clocks(hosts: Sequence[Facts], ahead: dict[int, tuple[float, float]]) -> Checks:
    """Against the first host.

    Args:
        ahead: by how many seconds each other one's clock is, and how much of that may be an error.
    """
    for number, (seconds, error) in ahead.items():
        if abs(seconds) - error > _CLOCK_S:
            how = "ahead of" if seconds > 0 else "behind"
            fact = f"{abs(seconds):.1f} s {how} that of {hosts[0].name}"
            yield Check(f"{hosts[number].name}: clock", "warn", fact, "timedatectl set-ntp true, or chrony")


# ---- between two ----


def reachable(reach: Reach, back: Reach) -> Checks:
    """Args:
    back: the other direction.
    """
    if reach.good:
        yield from _reached(reach)
        yield from _translated(reach, back)
        yield from _tunnelled(reach)
    else:
        fact, fix = _unreached(reach, back)
        yield Check(reach.title, "fail", fact, fix)


def _way(answer: Answer) -> str:
    return f"{answer.way.device} {answer.way.source} → {answer.way.address}"


def _reached(reach: Reach) -> Checks:
    shown = ", ".join(f"{_way(each)} in {each.seconds * 1e3:.2g} ms" for each in reach.best)
    left = [str(each) for each in reach.one.nics if each.name not in {answer.way.device for answer in reach.best}]
    addresses = {each.way.address for each in reach.good}
    unseen = [str(each) for each in reach.other.nics if each.address not in addresses]
    if not left and not unseen:
        yield Check(reach.title, "ok", shown)
        return
    missing = [f"{', '.join(left)} of {reach.one.name} reaches nothing there"] if left else []
    missing += [f"{', '.join(unseen)} of {reach.other.name} is not reached"] if unseen else []
    names = ",".join(sorted({each.way.device for each in reach.best}))
    fix = f"NCCL_SOCKET_IFNAME={names} on {reach.one.name} and the like on the others, or routes"
    yield Check(reach.title, "warn", f"{shown}; {'; '.join(missing)}", fix)


def _translated(reach: Reach, back: Reach) -> Checks:
    seen = [each for each in reach.good if each.seen != each.way.source.partition("%")[0]]
    if not seen:
        return
    fact = f"{reach.other.name} sees {seen[0].way.source} as {seen[0].seen}: addresses are translated on the way"
    if back.good:
        yield Check(f"{reach.title}: addresses", "ok", f"{fact}, and the other direction works")
    else:
        fix = "hostNetwork: true, or a network without translation: ranks connect to the addresses that hosts have"
        yield Check(f"{reach.title}: addresses", "fail", fact, fix)


def _tunnelled(reach: Reach) -> Checks:
    inside = [f"{nic} is a tunnel ({nic.tunnel})" for nic in map(reach.nic, reach.best) if nic.tunnel]
    if inside and len(inside) == len(reach.best):
        fix = "an interface of the hosts' own network: NCCL_SOCKET_IFNAME; in a pod hostNetwork: true"
        yield Check(f"{reach.title}: tunnel", "warn", f"{', '.join(inside)}: it costs packets and processors", fix)


def _unreached(reach: Reach, back: Reach) -> tuple[str, str]:
    one, other = reach.one, reach.other
    for host in (one, other):
        if not host.nics:
            return f"{host.name} has no interface to use", "see its own findings"
    if not reach.answers:
        families = _listed([(each.name, f"IPv{each.nics[0].family} only") for each in (one, other)])
        return families, "NCCL_SOCKET_FAMILY, and addresses of one family on all hosts"
    if reach.strange:
        twice = reach.strange[0].way.address
        name = next(each.name for each in other.nics if each.address == twice)
        fix = f"NCCL_SOCKET_IFNAME=^{name}, or with the interface of the network between the hosts"
        return f"{twice} of {other.name} ({name}) is another host's address as well, as of a bridge of containers", fix
    met = {each.problem for each in reach.answers}
    shown = "; ".join(f"{_way(each)}: {each.problem}" for each in reach.answers)
    if met == {"no route"}:
        return shown, "routes between these networks, or NCCL_SOCKET_IFNAME with interfaces of one network"
    through = f"{other.ports[0]}-{other.ports[1]}" if other.ports else "any port, or those of BAGUA_NET_PORT_RANGE"
    whole = " (the other direction passes)" if back.good else ""
    return f"{shown}{whole}", f"a firewall of {other.name}, or between, must let TCP from {one.name} to {through}"


def bootstrap(reach: Reach, answer: Answer) -> Checks:
    """Where the plugin has a range of ports, and NCCL's own has none: an answer from outside of the range."""
    if not answer.problem:
        return
    first, last = reach.other.kernel_ports
    fact = f"{_way(answer)}, port {answer.way.port}: {answer.problem}"
    fix = (
        f"NCCL's bootstrap listens at any port of {first}-{last}, whatever BAGUA_NET_PORT_RANGE is: let these pass as "
        "well, or narrow net.ipv4.ip_local_port_range"
    )
    yield Check(f"{reach.title}: NCCL's ports", "fail", fact, fix)


def packets(reach: Reach, answer: Answer, largest: int | None) -> Check:
    """Full packets did not arrive.

    Args:
        largest: bytes of data with which they do; None: with none that was tried.
    """
    nic = reach.nic(answer)
    name = f"{reach.title}: MTU"
    if largest is None:
        fact = f"{_way(answer)}: it connects, and no data arrives"
        return Check(name, "fail", fact, "a firewall that looks into connections, or a damaged path")
    fact = f"{_way(answer)}: packets of the MTU, {nic.mtu}, do not arrive, those of {largest + nic.headers} do"
    fix = (
        f"ip link set {nic.name} mtu {largest + nic.headers}, on all hosts; or let ICMP pass that says so, or "
        "sysctl -w net.ipv4.tcp_mtu_probing=1"
    )
    return Check(name, "fail", fact, fix)


# ---- rates ----


def bits(bytes_per_second: float) -> str:
    """ "9.4 Gbit/s", "94 Mbit/s"."""
    value = bytes_per_second * 8
    return f"{value / 1e9:.3g} Gbit/s" if value >= 1e9 else f"{value / 1e6:.3g} Mbit/s"


def flows(reach: Reach, answer: Answer, rates: Sequence[Rate]) -> Checks:
    """Args:
    rates: of 1, 2, … flows.
    """
    shown = ", ".join(f"{each.flows}: {bits(each.bytes_per_second)}" for each in rates)
    best = max(rates, key=lambda rate: rate.bytes_per_second)
    fact = f"flows {shown}; {_meaning(reach, rates, best)}"
    nic = reach.nic(answer)
    link = nic.speed_mbps * 125_000
    if best.repeated > _LOSSES:
        fact += f"; {best.repeated:.1%} of the packets are sent again"
        yield Check(f"{reach.title}: rate", "warn", fact, f"drop counters along the way: ethtool -S {nic.name}")
    elif nic.speed_known and best.bytes_per_second < _HALF * link and not _by_processor(reach, best):
        fact += f"; {nic.name} has {bits(link)}"
        fix = "what else uses the link or the switches; in a cloud, the bandwidth of the machine's type"
        yield Check(f"{reach.title}: rate", "warn", fact, fix)
    else:
        yield Check(f"{reach.title}: rate", "ok", fact)


def _by_processor(reach: Reach, rate: Rate) -> bool:
    return rate.processors > _BUSY * min(rate.flows, reach.one.processors)


def _meaning(reach: Reach, rates: Sequence[Rate], best: Rate) -> str:
    alone = rates[0]
    if best.bytes_per_second > _GAIN * alone.bytes_per_second:
        cloud = _CLOUDS.get(reach.one.vendor, "")
        more = f"{best.flows} carry {best.bytes_per_second / alone.bytes_per_second:.1f} times as much as one"
        return f"a limit for each flow: {more}, and the plugin takes as many as help" + (f"; {cloud}" if cloud else "")
    if _by_processor(reach, best):
        return f"a processor of {reach.one.name} is the limit of this measurement"
    return "one flow carries what the path carries"


def unlike(one: Reach, rates: Sequence[Rate], back: Sequence[Rate]) -> Checks:
    """Both directions of a path."""
    there, here = (max(each.bytes_per_second for each in either) for either in (rates, back))
    if min(there, here) * 2 < max(there, here):
        fact = f"{bits(there)} there and {bits(here)} back"
        fix = "what limits or uses one direction: shaping, duplex, another job"
        yield Check(f"{one.title}: directions", "warn", fact, fix)


# ---- names ----


def names(hosts: Sequence[Facts], reaches: dict[tuple[int, int], Reach]) -> Checks:
    """Interfaces by which hosts reach each other, where they have other names on each."""
    used = [
        sorted({each.way.device for (at, _), reach in reaches.items() if at == number for each in reach.best})
        for number in range(len(hosts))
    ]
    if len({tuple(each) for each in used if each}) < 2:
        return
    shown = _listed([(host.name, ", ".join(each)) for host, each in zip(hosts, used, strict=True)])
    every = ",".join(sorted({name for each in used for name in each}))
    fact = (
        f"{shown}. For NCCL one value on all of them, NCCL_SOCKET_IFNAME={every}; for gloo its own on each, "
        "GLOO_SOCKET_IFNAME"
    )
    yield Check("interface names", "ok", fact)
