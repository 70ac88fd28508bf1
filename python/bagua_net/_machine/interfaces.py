# SPDX-License-Identifier: MIT
"""Network interfaces: those that the plugin offers to NCCL, and those that it leaves out."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from .._errors import ParameterInvalid
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
    rows: list[Interface] = []
    try:
        rows = scan()
    except ParameterInvalid as error:
        return str(error)
    except OSError:
        pass
    if any(row.reason is None for row in rows):
        return None
    named = layers.effective("NCCL_SOCKET_IFNAME", layers.of_a_job())
    if not named.value:
        return "this machine: no interface to use; `bagua-net doctor` lists them"
    hints = [
        f"{row.address} is {row.name}'s address: NCCL_SOCKET_IFNAME=={row.name}" for row in rows if _by_address(row)
    ]
    hint = next(iter([*hints, *_invisible(named.value)]), "`bagua-net doctor` lists them")
    return f"{named}: no interface to use; {hint}"


def _by_address(row: Interface) -> bool:
    """Does the variable name the interface by its address? The library knows."""
    return (row.reason or "").startswith("NCCL_SOCKET_IFNAME has its address")


def _invisible(value: str) -> list[str]:
    """What a reader of the value does not see, and a shell or a YAML file left in it."""
    if re.search(r"[\"']", value):
        return ["the quotes are part of the value; leave them out"]
    return ["a blank is part of the value; leave it out"] if re.search(r"\s", value) else []


def scan() -> list[Interface]:
    """Scans the machine by the rules of NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY, with their values in a job.

    Raises:
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
        ParameterInvalid: NCCL_SOCKET_FAMILY has another value than these two.
        OSError: the scan failed as a whole.
    """
    lib = library.load()
    among = layers.of_a_job()
    with layers.applied(among):
        count = lib.bnet_interface_scan()
    family = layers.effective("NCCL_SOCKET_FAMILY", among)
    if count == -errno.EINVAL and family.value:
        raise ParameterInvalid(f"{family}: not AF_INET or AF_INET6; unset it or use one of these")
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
