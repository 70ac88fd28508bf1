# SPDX-License-Identifier: MIT
"""The network interface of a run, in the variables of NCCL and gloo."""

from __future__ import annotations

import os


def use_interface(ifname: str | None, local: bool) -> str:
    """Sets the interface variables of NCCL and gloo for this process and its children.

    Ranks of one machine use loopback unless another interface is asked for, so that the figures are about the software.
    Returns a phrase that names the choice.
    """
    wanted = ifname or os.environ.get("NCCL_SOCKET_IFNAME") or ("lo" if local else "")
    if not wanted:
        return "over the interfaces that each network chooses"
    os.environ["NCCL_SOCKET_IFNAME"] = wanted
    exact = wanted.removeprefix("=")
    if not any(mark in exact for mark in "^,:") and ("GLOO_SOCKET_IFNAME" not in os.environ or ifname):
        os.environ["GLOO_SOCKET_IFNAME"] = exact
    return "over loopback" if exact == "lo" else f"over {wanted}"
