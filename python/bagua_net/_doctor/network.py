# SPDX-License-Identifier: MIT
"""The doctor's checks of the network: interfaces, kernel settings, ports."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

from .. import _sizes
from .._machine import interfaces
from .._settings import layers, parameters
from .check import Check, Checks

SYSCTLS = Path("/proc/sys/net")

#: Smaller buffers cap a stream's window, and so its throughput, on a long path. These are Linux's own defaults for a
#: machine with a few GB (tcp_wmem and tcp_rmem, Documentation/networking/ip-sysctl.rst).
_MIN_BUFFER = {"tcp_wmem": 4 << 20, "tcp_rmem": 6 << 20}
#: The plugin may ask for this much on a short path with a fast link: two bandwidth-delay products at 50 Gb/s, 300 µs.
_MIN_WMEM_MAX = 4 << 20
#: The kernel hands segments of up to 64 KiB to an interface that splits them itself, and to loopback.
_MIN_OWN_BUFFER = 64 << 10
_MIN_BACKLOG = 1024
_FAST_MBPS = 25000
_JUMBO = 8000
_FEW_PORTS = 16
_KNOWN_CONTROLS = ("bbr", "cubic", "dctcp")


def _sysctl(name: str) -> str:
    return (SYSCTLS / name).read_text().strip()


def check_interfaces() -> Checks:
    """The interfaces that NCCL is offered, and why the others are left out."""
    rows = interfaces.scan()
    offered = [row for row in rows if row.reason is None]
    for row in offered:
        speed = f"{row.speed_mbps / 1000:g} Gb/s" + ("" if row.speed_known else " assumed, the kernel knows none")
        yield Check(f"interface {row.name}", "ok", f"{row.address}, {speed}, MTU {row.mtu}")
    for row in rows:
        if row.reason is not None:
            where = f"{row.address}: " if row.address else ""
            yield Check(f"interface {row.name}", "ok", f"{where}left out: {row.reason}")
    chosen = [layers.effective(name, layers.of_a_job()) for name in ("NCCL_SOCKET_IFNAME", interfaces.PREFIX)]
    given = " and ".join(str(setting) for setting in chosen if setting.value)
    if not offered:
        fact = "none is offered to NCCL" + (f": {given}" if given else "")
        prefix = chosen[1]
        fix = f"set {prefix.name} to the network of" if prefix.value else "set NCCL_SOCKET_IFNAME to"
        yield Check("interfaces", "fail", fact, f"{fix} one that is up")
    elif not given and all(ipaddress.ip_address(row.address.partition("%")[0]).is_loopback for row in offered):
        left = [f"{row.name}: {row.reason}" for row in rows if row.reason is not None and row.address]
        why = "; ".join(left) or "no other one has an address"
        fact = f"only {offered[0].name}, by which no other host is reached ({why})"
        yield Check("interfaces", "warn", fact, "bring one up, unless all ranks are on this host")


def check_bond() -> Checks:
    """The interfaces that BAGUA_NET_BOND names and that are not offered to NCCL."""
    row = next((row for row in parameters.read() if row.name == "BAGUA_NET_BOND"), None)
    if row is None or row.error or row.value in ("", "0", "1"):
        return  # a bad value is reported with the other parameters
    offered = {found.name for found in interfaces.scan() if found.reason is None}
    missing = [name for name in row.value.split(",") if name not in offered]
    if missing:
        fact = f"{row.value}: goes on without {', '.join(missing)}"
        yield Check(row.name, "warn", fact, f"take from {', '.join(sorted(offered)) or 'interfaces that are up'}")
    else:
        yield Check(row.name, "ok", f"{row.value}, as one device")


def check_mtu() -> Checks:
    """Small frames cost CPU time on a fast link."""
    for row in interfaces.scan():
        if row.reason is None and row.speed_known and row.speed_mbps >= _FAST_MBPS and row.mtu < _JUMBO:
            fact = f"MTU {row.mtu} at {row.speed_mbps / 1000:g} Gb/s"
            yield Check(f"MTU {row.name}", "warn", fact, f"ip link set {row.name} mtu 9000, if the switches carry it")


def check_buffers() -> Checks:
    """The third figure is the kernel's limit for a stream's buffer."""
    for name, least in _MIN_BUFFER.items():
        low, default, high = (int(figure) for figure in _sysctl(f"ipv4/{name}").split())
        fact = f"up to {high} bytes"
        if high >= least:
            yield Check(name, "ok", fact)
        else:
            yield Check(name, "warn", fact, f'sysctl -w net.ipv4.{name}="{low} {default} {least}"')


def check_own_buffers() -> Checks:
    """BAGUA_NET_SNDBUF and BAGUA_NET_RCVBUF fix a stream's buffers; 0 leaves them to the plugin and the kernel."""
    for row in parameters.read():
        if row.name not in ("BAGUA_NET_SNDBUF", "BAGUA_NET_RCVBUF") or row.error or row.value == "0":
            continue  # a bad value is reported with the other parameters
        if _sizes.parse(row.value) >= _MIN_OWN_BUFFER:
            yield Check(row.name, "ok", f"{row.value} for each stream")
        else:
            fact = f"{row.value} for each stream: TCP drops and times out with windows that small"
            yield Check(row.name, "warn", fact, "unset it, or take at least 64K")


def check_wmem_max() -> Checks:
    """The largest send buffer that a process may ask for. Where that is too small, the plugin leaves the size to the
    kernel, which keeps more bytes in flight than a short path needs."""
    try:
        limit = int(_sysctl("core/wmem_max"))
    except FileNotFoundError:
        return  # an older kernel shows it only to the host, not to a container
    fact = f"a send buffer of up to {limit} bytes may be asked for"
    if limit >= _MIN_WMEM_MAX:
        yield Check("wmem_max", "ok", fact)
    else:
        yield Check("wmem_max", "warn", fact, f"sysctl -w net.core.wmem_max={_MIN_WMEM_MAX}")


def check_backlog() -> Checks:
    """All ranks may connect to a listener at the same time."""
    backlog = int(_sysctl("core/somaxconn"))
    if backlog >= _MIN_BACKLOG:
        yield Check("somaxconn", "ok", f"{backlog} connections may wait")
    else:
        fix = f"sysctl -w net.core.somaxconn={_MIN_BACKLOG * 4}"
        yield Check("somaxconn", "warn", f"{backlog} connections may wait", fix)


def check_congestion_control() -> Checks:
    """Which one, and does it restart slowly after an idle time? bbr has its own rules for that."""
    control = _sysctl("ipv4/tcp_congestion_control")
    available = _sysctl("ipv4/tcp_available_congestion_control").split()
    if control in _KNOWN_CONTROLS:
        yield Check("congestion control", "ok", control)
    else:
        better = "bbr" if "bbr" in available else "cubic"
        fix = f"sysctl -w net.ipv4.tcp_congestion_control={better}"
        yield Check("congestion control", "warn", control, fix)
    idle = int(_sysctl("ipv4/tcp_slow_start_after_idle"))
    if idle and control != "bbr":
        fact = f"1: with {control}, every burst after a pause starts slowly"
        yield Check("tcp_slow_start_after_idle", "warn", fact, "sysctl -w net.ipv4.tcp_slow_start_after_idle=0")
    else:
        yield Check("tcp_slow_start_after_idle", "ok", f"{idle}, with {control}")


def check_own_congestion_control() -> Checks:
    """BAGUA_NET_CONGESTION, tried as the plugin does: if it is not available, streams keep the system's."""
    row = next((row for row in parameters.read() if row.name == "BAGUA_NET_CONGESTION"), None)
    if row is None or row.error or not row.value:
        return  # a bad value is reported with the other parameters
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, row.value.encode())
        except FileNotFoundError:
            names = _sysctl("ipv4/tcp_available_congestion_control")
            fact = f"{row.value}: the kernel has {names}; streams get {_sysctl('ipv4/tcp_congestion_control')}"
            yield Check(row.name, "warn", fact, f"unset it, take one of those, or modprobe tcp_{row.value}")
        except PermissionError:
            names = _sysctl("ipv4/tcp_allowed_congestion_control")
            fact = f"{row.value}: this user may have {names}; streams get {_sysctl('ipv4/tcp_congestion_control')}"
            fix = f'sysctl -w net.ipv4.tcp_allowed_congestion_control="{names} {row.value}"'
            yield Check(row.name, "warn", fact, fix)
        else:
            yield Check(row.name, "ok", f"{row.value} for each stream")


def _is_free(port: int) -> bool:
    """As the plugin listens: also where connections of an earlier job are in TIME_WAIT."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def kernels_ports() -> tuple[int, int]:
    """The first and the last port that the kernel gives to sockets that ask for none."""
    low, high = _sysctl("ipv4/ip_local_port_range").split()
    return int(low), int(high)


def check_ports() -> Checks:
    """A process needs one port per device, and outgoing connections must not take those first."""
    row = next((row for row in parameters.read() if row.name == "BAGUA_NET_PORT_RANGE"), None)
    if row is None or row.error:
        return  # a bad value is reported with the other parameters
    if row.value == "0":
        yield Check("ports", "ok", "any port: a firewall between the hosts would need BAGUA_NET_PORT_RANGE")
        return
    first, _, last = row.value.partition("-")
    ports = range(int(first), int(last or first) + 1)
    free = sum(_is_free(port) for port in ports)
    fact = f"{free} of {len(ports)} ports free in {row.value}"
    if free == 0:
        yield Check("ports", "fail", fact, "set BAGUA_NET_PORT_RANGE to ports that nothing listens on")
    elif free < _FEW_PORTS:
        yield Check("ports", "warn", fact, "widen BAGUA_NET_PORT_RANGE: a port for each process")
    else:
        yield Check("ports", "ok", fact)
    low, high = kernels_ports()
    if ports.start <= high and low < ports.stop:
        fact = f"{row.value} overlaps the ports of outgoing connections, {low}-{high}"
        reserved = ",".join(filter(None, [_sysctl("ipv4/ip_local_reserved_ports"), row.value]))  # it is set as a whole
        fix = f"sysctl -w net.ipv4.ip_local_reserved_ports={reserved}, or ports below {low}"
        yield Check("port overlap", "warn", fact, fix)


def check_bootstrap_ports() -> Checks:
    """NCCL's bootstrap, through which ranks find each other, asks for no port, and NCCL has no parameter for one
    (createListenSocket in its src/bootstrap.cc). Only the port of rank 0 may be given, by NCCL_COMM_ID."""
    low, high = kernels_ports()
    fact = f"any of {low}-{high}: NCCL's bootstrap listens there whatever BAGUA_NET_PORT_RANGE is"
    yield Check("NCCL's ports", "ok", f"{fact}; for a firewall, net.ipv4.ip_local_port_range narrows them")


CHECKS: tuple[Callable[[], Checks], ...] = (
    check_interfaces,
    check_bond,
    check_mtu,
    check_buffers,
    check_own_buffers,
    check_wmem_max,
    check_backlog,
    check_congestion_control,
    check_own_congestion_control,
    check_ports,
    check_bootstrap_ports,
)
