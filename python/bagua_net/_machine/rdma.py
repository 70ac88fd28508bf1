# SPDX-License-Identifier: MIT
"""Active RDMA ports, and which of them NCCL would use.

NCCL takes one network per communicator, so a network plugin leaves RDMA unused. A port that the kernel shows as active
is none that NCCL uses where NCCL was told to leave it, or where a container lacks its device file.

Source: ncclIbInitDevices in NCCL's ``src/transport/net_ib``, parseStringList and matchIfList in ``src/misc/utils.cc``
(2.8 to 2.30). ``device:`` without a number means every port from 2.30 on, and none before; here every port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .._settings import conf, layers

#: The kernel lists RDMA devices here.
SYSFS = Path("/sys/class/infiniband")
#: Without the device's file here, which a container gets or not, no program can open it.
DEVICE_FILES = Path("/dev/infiniband")

#: NCCL's own transport skips ports of another kind, as EFA's; a plugin may use those.
_VERBS_LAYERS = ("InfiniBand", "Ethernet")
#: MAX_IB_DEVS
_MAX_HCAS = 32
_NUMBER_AT_START = re.compile(r"\s*[+-]?\d+")
_ANY_PORT = -1


@dataclass(frozen=True)
class RdmaPort:
    """One active port."""

    device: str
    port: int
    #: "InfiniBand", "Ethernet" (RoCE), or another name of the kernel's
    link_layer: str
    #: the kernel's text, such as "100 Gb/sec (4X EDR)"; "" where it has none
    rate: str

    def __str__(self) -> str:
        detail = ", ".join(filter(None, (self.link_layer, self.rate)))
        return f"{self.device}:{self.port}" + (f" ({detail})" if detail else "")

    @property
    def is_verbs(self) -> bool:
        """Is it one for NCCL's own transport, and not for a plugin alone?"""
        return self.link_layer in _VERBS_LAYERS


@dataclass(frozen=True)
class Rdma:
    """The active ports of this machine."""

    #: those that a job would use without the plugin
    used: list[RdmaPort]
    #: the others, each with the reason
    unused: list[tuple[RdmaPort, str]]

    @property
    def names(self) -> str:
        """Those used, for a message."""
        return ", ".join(map(str, self.used))

    @property
    def left(self) -> str:
        """Those unused and why, for a message: each reason once."""
        reasons: dict[str, list[str]] = {}
        for port, reason in self.unused:
            reasons.setdefault(reason, []).append(f"{port.device}:{port.port}")
        return "; ".join(f"{reason}: NCCL does not use {', '.join(ports)}" for reason, ports in reasons.items())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def active_ports(root: Path | None = None) -> list[RdmaPort]:
    """The ports in state ACTIVE below ``root`` (:data:`SYSFS`), in order of device and port."""
    ports = []
    for directory in sorted((SYSFS if root is None else root).glob("*/ports/*")):
        if _read(directory / "state").endswith("ACTIVE") and directory.name.isdigit():
            ports.append(
                RdmaPort(
                    device=directory.parent.parent.name,
                    port=int(directory.name),
                    link_layer=_read(directory / "link_layer"),
                    rate=_read(directory / "rate"),
                )
            )
    return ports


def find(among: layers.Layers) -> Rdma:
    """The active ports, and which of them a job with these settings would use."""
    found = Rdma([], [])
    for port in active_ports():
        reason = _why_unused(port, among)
        if reason is None:
            found.used.append(port)
        else:
            found.unused.append((port, reason))
    return found


def _why_unused(port: RdmaPort, among: layers.Layers) -> str | None:
    network = layers.effective("NCCL_NET", among)
    if (network.value or "").lower() == "socket":
        return str(network)
    if port.is_verbs:
        disabled, hcas = (layers.effective(name, among) for name in ("NCCL_IB_DISABLE", "NCCL_IB_HCA"))
        if conf.number(disabled.value):
            return str(disabled)
        if not _is_chosen(port, hcas.value or ""):
            return str(hcas)
    return _missing_file(port.device)


def _is_chosen(port: RdmaPort, hcas: str) -> bool:
    """Does this value of NCCL_IB_HCA leave NCCL the port?"""
    inverted, hcas = hcas.startswith("^"), hcas.removeprefix("^")
    exact, hcas = hcas.startswith("="), hcas.removeprefix("=")
    chosen = [_hca(entry) for entry in hcas.split(",") if entry and not entry.startswith(":")][:_MAX_HCAS]
    matches = not chosen or any(
        (port.device == name if exact else port.device.startswith(name)) and number in (_ANY_PORT, port.port)
        for name, number in chosen
    )
    return matches != inverted


def _hca(entry: str) -> tuple[str, int]:
    """The name and the port of ``device:port:rail:plane``; as for atoi, what is no number is 0."""
    name, _, rest = entry.partition(":")
    port = rest.partition(":")[0]
    if not port:
        return name, _ANY_PORT
    number = _NUMBER_AT_START.match(port)
    return name, int(number[0]) if number else 0


def _missing_file(device: str) -> str | None:
    """Why no program here can open the device; None: it can, or the kernel does not tell the file's name."""
    for entry in (SYSFS.parent / "infiniband_verbs").glob("uverbs*"):
        file = DEVICE_FILES / entry.name
        if _read(entry / "ibdev") == device and not file.exists():
            return f"no {file} here"
    return None
