# SPDX-License-Identifier: MIT
"""Active RDMA ports. NCCL uses one network per communicator, so a network plugin leaves them unused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The kernel lists RDMA devices here.
SYSFS = Path("/sys/class/infiniband")


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
