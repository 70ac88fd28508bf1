# SPDX-License-Identifier: MIT
"""What follows from the facts of several hosts, from the answers between them, and from the rates of their flows."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..check import Check, Checks
from .facts import Facts, Nic, Reach
from .probe import Answer, Passage, Rate

#: Certificates, and log lines that are compared.
_CLOCK_S = 1.0
#: More flows carry so many times more: each is limited by itself. Without such a limit several flows carried up to 1.3
#: times one between two busy hosts, with a processor each.
_GAIN = 1.6
_LOSSES = 0.01
_HALF = 0.5
#: Of the processors that the flows could use.
_BUSY = 0.85
#: "Amazon EC2 instance network bandwidth"
_CLOUDS = {"Amazon EC2": "AWS carries 5 Gbit/s a flow, 10 within a cluster placement group, 25 with ENA Express"}


# ---- each host, and all of them ----


def own(hosts: Sequence[Facts]) -> Checks:
    """What `bagua-net doctor` finds on each."""
    for host in hosts:
        for each in host.findings:
            name = f"{host.name}: {each['name']}"
            yield Check(name, "fail" if each["verdict"] == "fail" else "warn", each["fact"], each["fix"])


def _listed(values: Sequence[tuple[str, str]]) -> str:
    """ "a, b: 1; c: 2"."""
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
        fix = "`bagua-net enable` on all of them, or on none and `bagua-net run -- COMMAND` on all"
        yield Check("activation", "fail", f"{states} ({off.problem.partition('; ')[0]})", fix)
    if len({each.identity for each in hosts}) > 1:
        secrets = _listed([(host.name, host.identity) for host in hosts])
        fix = "the same BAGUA_NET_SECRET_FILE, BAGUA_NET_ENCRYPT and BAGUA_NET_CHECKSUM on all hosts"
        yield Check("identity", "fail", secrets, fix)
    else:
        yield Check("identity", "ok", hosts[0].identity)
    nccls = [(host.name, host.nccl or "no NCCL") for host in hosts]
    if len({each.nccl for each in hosts}) > 1:
        yield Check("NCCL", "warn", _listed(nccls), "the same NCCL on all hosts")


def no_nccl(host: Facts, problem: str) -> Check:
    """The job runs without this host."""
    fact, _, fix = problem.partition("; ")
    return Check(f"{host.name}: NCCL load", "fail", fact, fix or "`bagua-net doctor --nccl` there")


def clocks(first: Facts, others: Sequence[tuple[Facts, float, float]]) -> Checks:
    """Those that are far from the first one's.

    Args:
        others: by how many seconds each one's clock is ahead of the first one's, and how much of that may be an error.
    """
    for host, seconds, error in others:
        if abs(seconds) - error > _CLOCK_S:
            how = "ahead of" if seconds > 0 else "behind"
            fact = f"{abs(seconds):.1f} s {how} that of {first.name}"
            yield Check(f"{host.name}: clock", "warn", fact, "timedatectl set-ntp true, or chrony")


# ---- between two ----


def reachable(reach: Reach, back: Reach) -> Checks:
    """Whether the one reaches the other, from each interface, and by which addresses.

    Args:
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


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def _met(answers: Sequence[Answer]) -> str:
    """ "no answer, refused"."""
    return ", ".join(dict.fromkeys(each.problem or "another host answers" for each in answers))


def _reached(reach: Reach) -> Checks:
    one, other = reach.one, reach.other
    shown = ", ".join(f"{_way(each)} in {_milliseconds(each.seconds)}" for each in reach.best)
    here, there = ({each.way.device for each in reach.best}, {each.way.address for each in reach.good})
    left = [nic for nic in one.nics if nic.name not in here]
    unseen = [nic for nic in other.nics if nic.address not in there]
    facts, fixes = [shown], []
    for nic in left:
        tried = [each for each in reach.answers if each.way.device == nic.name]
        facts.append(f"{nic} reaches nothing there: {_why(reach, tried)}")
    for nic in unseen:
        tried = [each for each in reach.answers if each.way.address == nic.address]
        facts.append(f"{nic} of {other.name} is not reached: {_why(reach, tried, nic.address)}")
    if left:
        fixes.append(f"on {one.name} NCCL_SOCKET_IFNAME=={','.join(sorted(here))}")
    if unseen:
        names = sorted({nic.name for nic in other.nics if nic.address in there})
        fixes.append(f"on {other.name} NCCL_SOCKET_IFNAME=={','.join(names)}")
    if fixes:
        yield Check(reach.title, "warn", "; ".join(facts), f"{' and '.join(fixes)}, or let them pass")
    else:
        yield Check(reach.title, "ok", shown)


def _why(reach: Reach, tried: Sequence[Answer], address: str = "") -> str:
    if address in reach.common:
        return f"{reach.one.name} has that address as well"
    return _met(tried) or "no address of its family"


def _translated(reach: Reach, back: Reach) -> Checks:
    if not reach.translated:
        return
    one = reach.translated[0]
    fact = f"{reach.other.name} sees {one.way.source} as {one.seen}: addresses are translated on the way"
    if back.good:
        yield Check(f"{reach.title}: addresses", "ok", f"{fact}, and the other direction works")
    else:
        fix = "hostNetwork: true, or a network without translation: ranks connect to the addresses that hosts have"
        yield Check(f"{reach.title}: addresses", "fail", fact, fix)


def _tunnelled(reach: Reach) -> Checks:
    inside = [f"{nic} is a tunnel ({nic.tunnel})" for nic in map(reach.nic, reach.best) if nic.tunnel]
    if inside and len(inside) == len(reach.best):
        fix = "an interface of the hosts' own network: NCCL_SOCKET_IFNAME; in a pod hostNetwork: true"
        fact = f"{', '.join(inside)}: it takes bytes of each packet, and processors"
        yield Check(f"{reach.title}: tunnel", "warn", fact, fix)


def _unreached(reach: Reach, back: Reach) -> tuple[str, str]:
    one, other = reach.one, reach.other
    for host in (one, other):
        if all(_is_own(nic) for nic in host.nics):
            left = "; ".join(f"{name}: {why}" for name, why in host.left_out.items() if name != "lo")
            fact = f"{host.name} has no interface to use but {', '.join(nic.name for nic in host.nics) or 'none'}"
            return f"{fact} ({left or 'there is no other one with an address'})", "bring one up; NCCL_SOCKET_IFNAME"
    if reach.strange or (reach.common and not reach.answers):
        return _twice(reach)
    if not reach.answers:
        return _without_a_way(reach)
    shown = "; ".join(f"{_way(each)}: {each.problem}" for each in reach.answers)
    met = {each.problem for each in reach.answers}
    if back.translated:
        return shown, f"see the addresses of {back.title}"
    if met == {"no route"}:
        return shown, "routes between these networks, or NCCL_SOCKET_IFNAME with interfaces of one network"
    through = f"the ports {other.ports[0]}-{other.ports[1]}" if other.ports else "any port, or set BAGUA_NET_PORT_RANGE"
    whole = " (the other direction passes)" if back.good else ""
    fix = f"the firewall of {other.name}, or one between, has to let TCP from {one.name} to {through}"
    return f"{shown}{whole}", fix


def _is_own(nic: Nic) -> bool:
    """Its address leads to the host itself."""
    return ipaddress.ip_address(nic.address.partition("%")[0]).is_loopback


def _twice(reach: Reach) -> tuple[str, str]:
    """Somebody else answers, or nobody was asked."""
    address = reach.strange[0].way.address if reach.strange else reach.common[0]
    name = reach.other.addresses[address]
    whose = f"{reach.one.name} has it as well" if address in reach.common else "another host answers there"
    fact = f"{address} of {reach.other.name} ({name}): {whose}, as with a bridge of containers"
    return fact, f"NCCL_SOCKET_IFNAME=^={name}, or with the interface of the network between the hosts"


def _without_a_way(reach: Reach) -> tuple[str, str]:
    if problems := reach.listening.problems:
        address, why = next(iter(problems.items()))
        of = f"of {reach.other.ports[0]}-{reach.other.ports[1]} " if reach.other.ports else ""
        fact = f"{reach.other.name} cannot listen at {address}: no port {of}is free ({why})"
        return fact, "wait for the job that has them, or widen BAGUA_NET_PORT_RANGE"
    families = [(each.name, f"IPv{each.nics[0].family}") for each in (reach.one, reach.other)]
    return f"{_listed(families)} only", "NCCL_SOCKET_FAMILY, and addresses of one family on all hosts"


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


def packets(reach: Reach, answer: Answer, full: Passage, smaller: Passage | None) -> Check:
    """Full packets did not arrive.

    Args:
        smaller: the largest that did; None: none of those that were tried.
    """
    nic = reach.nic(answer)
    name = f"{reach.title}: MTU"
    if smaller is None:
        fact = f"{_way(answer)}: it connects, and no data arrives"
        return Check(name, "fail", fact, "a firewall that looks into connections, or a damaged path")
    size = smaller.mss + nic.headers
    fact = f"{_way(answer)}: packets of {full.mss + nic.headers} bytes do not arrive, those of {size} do"
    fix = (
        f"ip link set {nic.name} mtu {size} on both hosts; or let ICMP pass that says how much fits (fragmentation "
        "needed, packet too big); or sysctl -w net.ipv4.tcp_mtu_probing=1"
    )
    return Check(name, "fail", fact, fix)


# ---- rates ----


class Measured(NamedTuple):
    """A rate, and the processors that the receiving host's part took."""

    rate: Rate
    there: float


@dataclass(frozen=True)
class CheckOfRate(Check):
    """With the rate itself, for programs."""

    bytes_per_second: float = 0
    """Of payload, with the best number of flows."""


def bits(bytes_per_second: float) -> str:
    """ "9.4 Gbit/s", "94 Mbit/s"."""
    value = bytes_per_second * 8
    return f"{value / 1e9:.3g} Gbit/s" if value >= 1e9 else f"{value / 1e6:.3g} Mbit/s"


def _most(measured: Sequence[Measured]) -> Measured:
    return max(measured, key=lambda each: each.rate.bytes_per_second)


def flows(reach: Reach, answer: Answer, measured: Sequence[Measured]) -> CheckOfRate:
    """What the rates say of the path.

    Args:
        measured: with 1, 2, … flows.
    """
    rates = [each.rate for each in measured]
    shown = ", ".join(f"{each.flows} flow{'s'[: each.flows - 1]} {bits(each.bytes_per_second)}" for each in rates)
    best = _most(measured)
    carried = best.rate.bytes_per_second
    fact = f"{shown}; {_meaning(reach, measured)}"
    nic = reach.nic(answer)
    name = f"{reach.title}: rate"
    link = min((each.speed_mbps for each in (nic, reach.nic_there(answer)) if each.speed_known), default=0) * 125_000
    if best.rate.repeated > _LOSSES:
        fact += f"; {best.rate.repeated:.1%} of the packets are sent again"
        return CheckOfRate(name, "warn", fact, f"drop counters along the way: ethtool -S {nic.name}", carried)
    if carried < _HALF * link and not _by_processor(reach, best):
        fact += f"; the card has {bits(link)}"
        fix = "what else uses the link or the switches; in a cloud, the type of the machine"
        return CheckOfRate(name, "warn", fact, fix, carried)
    return CheckOfRate(name, "ok", fact, bytes_per_second=carried)


def _by_processor(reach: Reach, measured: Measured) -> bool:
    """Was a processor for each flow, or all that there are, busy at one end?"""
    used = ((measured.rate.processors, reach.one), (measured.there, reach.other))
    return any(busy > _BUSY * min(measured.rate.flows, host.processors) for busy, host in used)


def _meaning(reach: Reach, measured: Sequence[Measured]) -> str:
    alone, best = measured[0], _most(measured)
    if _by_processor(reach, alone) or _by_processor(reach, best):
        return "the processors limit this measurement, not the network"
    if best.rate.bytes_per_second > _GAIN * alone.rate.bytes_per_second:
        times = best.rate.bytes_per_second / alone.rate.bytes_per_second
        cloud = _CLOUDS.get(reach.one.vendor, "")
        more = f"{best.rate.flows} carry {times:.1f} times as much as one, and the plugin opens more while that helps"
        return f"a limit for each flow: {more}" + (f"; {cloud}" if cloud else "")
    return "one flow carries what the path carries"


def unlike(reach: Reach, there: Sequence[Measured], back: Sequence[Measured]) -> Checks:
    """Both directions of one pair of interfaces."""
    rates = [_most(each).rate.bytes_per_second for each in (there, back)]
    if min(rates) * 2 < max(rates):
        fact = f"{bits(rates[0])} there and {bits(rates[1])} back"
        fix = "what limits or uses one direction: shaping, duplex, another job"
        yield Check(f"{reach.title}: directions", "warn", fact, fix)


# ---- names ----


def names(hosts: Mapping[int, Facts], reaches: Mapping[tuple[int, int], Reach]) -> Checks:
    """Interfaces by which hosts reach each other, where no name is common to all."""
    used = {
        number: {each.way.device for (at, _), reach in reaches.items() if at == number for each in reach.best}
        for number in hosts
    }
    if not all(used.values()) or set.intersection(*used.values()):
        return
    shown = _listed([(hosts[number].name, ", ".join(sorted(each))) for number, each in used.items()])
    every = set.union(*used.values())
    others = any({nic.name for nic in hosts[number].nics} & every - each for number, each in used.items())
    nccl = "its own" if others else f"one value for all, NCCL_SOCKET_IFNAME=={','.join(sorted(every))}"
    fact = f"{shown}. NCCL takes {nccl}; gloo needs a GLOO_SOCKET_IFNAME on each"
    yield Check("interface names", "ok", fact)
