# SPDX-License-Identifier: MIT
"""Any plugin with NCCL's net interface: how an NCCL is told to load it, and the name of its network."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from .._errors import BaguaNetError
from .discovery import FIRST_WITH_PATH

_SHORT = re.compile(r"libnccl-net-(?P<name>.+)\.so")
#: The tables of a plugin are named by their version; in each, the first entry points to the network's name.
_TABLES = tuple(f"ncclNetPlugin_v{version}" for version in range(16, 3, -1))


class PluginUnusable(BaguaNetError):
    """NCCL could not load this plugin."""


def variables(plugin: Path, version: tuple[int, int, int]) -> dict[str, str]:
    """What makes an NCCL of this version load the plugin: NCCL_NET_PLUGIN, and up to 2.20 LD_LIBRARY_PATH, beginning
    with the plugin's directory.

    Raises:
        PluginUnusable: NCCL takes a name instead of a path, and the file has none.
    """
    if version >= FIRST_WITH_PATH:
        return {"NCCL_NET_PLUGIN": str(plugin)}
    short = _SHORT.fullmatch(plugin.name)
    if short is None:
        raise PluginUnusable(
            f"NCCL {'.'.join(map(str, version))} loads only plugins named libnccl-net-NAME.so, not {plugin}; "
            "take NCCL 2.21 or later"
        )
    search = [str(plugin.parent), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    return {"NCCL_NET_PLUGIN": short["name"], "LD_LIBRARY_PATH": ":".join(dict.fromkeys(search))}


def network_name(plugin: Path) -> str:
    """The name of the plugin's network, for NCCL_NET and as NCCL's log has it. Loads the plugin into this process.

    Raises:
        PluginUnusable: it does not load, or is no plugin.
    """
    try:
        library = ctypes.CDLL(str(plugin), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise PluginUnusable(f"{plugin} does not load: {error}") from error
    for table in _TABLES:
        try:
            name = ctypes.c_char_p.in_dll(library, table).value
        except ValueError:
            continue
        if name:
            return name.decode(errors="replace")
    raise PluginUnusable(f"{plugin} is no network plugin: it has no ncclNetPlugin_v4 to _v16")
