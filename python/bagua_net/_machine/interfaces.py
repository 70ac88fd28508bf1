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

#: The parameter by which addresses choose interfaces.
PREFIX = "BAGUA_NET_ADDRESS_PREFIX"
#: More interfaces are not listed in one line.
_FEW = 8


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
    among = layers.of_a_job()
    named, prefix = (layers.effective(name, among) for name in ("NCCL_SOCKET_IFNAME", PREFIX))
    chosen_by = " and ".join(str(setting) for setting in (named, prefix) if setting.value) or "this machine"
    addresses = [row.reason for row in rows if row.reason and row.reason.startswith("NCCL_SOCKET_IFNAME takes names")]
    hint = next(iter([*addresses, *_invisible(named.value or "")]), _listed(rows))
    return f"{chosen_by}: no interface to use; {hint}"


def _listed(rows: list[Interface]) -> str:
    found = [f"{row.name} ({row.address})" for row in rows if row.address]
    shown = [*found[:_FEW], "…"] if len(found) > _FEW else found
    return f"this host has {', '.join(shown) or 'no address'}"


def _invisible(value: str) -> list[str]:
    """What a reader of the value does not see, and a shell or a YAML file left in it."""
    if re.search(r"[\"']", value):
        return ["the quotes are part of the value; leave them out"]
    return ["a blank is part of the value; leave it out"] if re.search(r"\s", value) else []


def scan() -> list[Interface]:
    """Scans the machine by the rules of NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY and BAGUA_NET_ADDRESS_PREFIX, with their
    values in a job. A prefix that the library refuses counts as not set.

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
