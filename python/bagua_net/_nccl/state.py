# SPDX-License-Identifier: MIT
"""Has the NCCL in this process chosen its network? Its interface does not tell, but its variables do."""

from __future__ import annotations

import ctypes

from . import elf
from .discovery import Nccl

#: Arrays that are zero until the first communicator and never all zero again: the state of each network in NCCL 2.12
#: to 2.26 (src/net.cc), the list of plugins from 2.27 on (src/plugin/net.cc), where 2.30 made it static.
_ARRAYS = ("ncclNetStates", "netPluginLibs", "_ZL13netPluginLibs")
#: Up to 2.21 ncclInit loads the plugin once per process, and ncclGetUniqueId calls it as well (src/init.cc). Later
#: releases use a variable of that name for something else.
_INIT_DONE = "_ZL11initialized"
_FIRST_WITH_LOAD_BY_COMMUNICATOR = (2, 22, 0)
#: An exported function: its address gives the load address of the library.
_ANCHOR = "ncclGetVersion"


def has_chosen(nccl: Nccl) -> bool:
    """Reads the variables of a libnccl that this process has loaded. False where they cannot be found, as in a
    stripped library; those of the wheels are not stripped."""
    names: tuple[str, ...] = _ARRAYS
    if nccl.version is not None and nccl.version < _FIRST_WITH_LOAD_BY_COMMUNICATOR:
        names += (_INIT_DONE,)
    try:
        found = elf.symbols(nccl.path, (*names, _ANCHOR))
    except (OSError, ValueError):
        return False
    anchor = found.pop(_ANCHOR, None)
    if anchor is None:
        return False
    function = ctypes.cast(ctypes.CDLL(str(nccl.path)).ncclGetVersion, ctypes.c_void_p)
    base = (function.value or 0) - anchor.offset
    return any(any(ctypes.string_at(base + variable.offset, variable.size)) for variable in found.values())
