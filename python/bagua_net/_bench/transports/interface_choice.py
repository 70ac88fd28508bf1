# SPDX-License-Identifier: MIT
"""The network interface of a run, in the variables of NCCL and gloo."""

from __future__ import annotations

import os
import socket

_PREFIX = "BAGUA_NET_ADDRESS_PREFIX"


def use_interface(ifname: str | None, local: bool) -> str:
    """Sets the interface variables of NCCL and gloo for this process and its children.

    Ranks of one machine use loopback unless another interface is asked for, so that the figures are about the software.
    The others do not read BAGUA_NET_ADDRESS_PREFIX, so they get the names that it leaves.
    Returns a phrase that names the choice.
    """
    by_address = os.environ.get(_PREFIX)
    wanted = ifname or os.environ.get("NCCL_SOCKET_IFNAME") or ("lo" if local and not by_address else "")
    if by_address:
        wanted = _of_the_prefix() or wanted
    if not wanted:
        return "over the interfaces that each network chooses"
    os.environ["NCCL_SOCKET_IFNAME"] = wanted
    exact = wanted.removeprefix("=")
    if not any(mark in exact for mark in "^,:") and ("GLOO_SOCKET_IFNAME" not in os.environ or ifname):
        os.environ["GLOO_SOCKET_IFNAME"] = _whole(exact) if exact == wanted else exact
    return "over loopback" if exact == "lo" else f"over {wanted}"


def _whole(prefix: str) -> str:
    """An interface whose name begins so, which is how NCCL takes it; gloo takes whole names."""
    names = [name for _, name in socket.if_nameindex()]
    return prefix if prefix in names else next((name for name in names if name.startswith(prefix)), prefix)


def _of_the_prefix() -> str:
    """The interfaces that the plugin uses, as NCCL_SOCKET_IFNAME takes them; "": none, and the run says why."""
    from ..._machine import interfaces  # which loads the plugin: elsewhere a run over NCCL alone needs no cffi

    names = [row.name for row in interfaces.scan() if row.reason is None]
    return "=" + ",".join(names) if names else ""
