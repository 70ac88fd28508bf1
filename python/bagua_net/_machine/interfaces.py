# SPDX-License-Identifier: MIT
"""Network interfaces: those that the plugin offers to NCCL, and those that it leaves out."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .._native import library
from .._settings import layers


@dataclass(frozen=True)
class Interface:
    """One row of the library's scan."""

    name: str
    address: str
    pci_path: str | None
    #: why it is not offered to NCCL; None: it is offered
    reason: str | None
    speed_mbps: int
    #: False: the kernel reports no speed, and the figure is an assumption
    speed_known: bool
    mtu: int
    #: None: unknown
    numa_node: int | None


def complaint() -> str | None:
    """A sentence where a job on this machine would be offered no interface at all; None: it has one.

    Raises:
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
    """
    try:
        if any(row.reason is None for row in scan()):
            return None
    except OSError:
        pass
    named = layers.effective("NCCL_SOCKET_IFNAME", layers.of_a_job())
    chosen = f"NCCL_SOCKET_IFNAME={named.value} ({named.layer})" if named.value else "this machine"
    return f"{chosen}: no interface to use; `bagua-net doctor` lists them"


def scan() -> list[Interface]:
    """Scans the machine by the rules of NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY, with their values in a job.

    Raises:
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
        OSError: the scan failed as a whole.
    """
    lib = library.load()
    with layers.applied(layers.of_a_job()):
        count = lib.bnet_interface_scan()
    if count < 0:
        raise OSError(-count, os.strerror(-count))
    return [
        Interface(
            name=library.text(row.name) or "",
            address=library.text(row.address) or "",
            pci_path=library.text(row.pci_path),
            reason=library.text(row.reason),
            speed_mbps=row.speed_mbps,
            speed_known=bool(row.speed_known),
            mtu=row.mtu,
            numa_node=row.numa_node if row.numa_node >= 0 else None,
        )
        for row in library.rows("bnet_interface_t", count, lib.bnet_interface_get)
    ]
