# SPDX-License-Identifier: MIT
"""The byte counters of the library that NCCL loaded into this process. Needs no cffi, which a GPU machine may lack."""

from __future__ import annotations

import ctypes
import os
import re

from bagua_net._native.plugin import header_path, plugin_path


def fields() -> list[str]:
    """The members of ``bnet_counters_t``, in order: all of them uint64_t."""
    (body,) = re.findall(r"typedef struct \{([^}]*)\} bnet_counters_t;", header_path().read_text(encoding="utf-8"))
    return re.findall(r"uint64_t (\w+);", body)


def read() -> dict[str, int] | None:
    """The present values; None where the library is not loaded. It does not load the library."""
    try:
        library = ctypes.CDLL(str(plugin_path()), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None
    names = fields()
    values = (ctypes.c_uint64 * len(names))()
    library.bnet_counters(values)
    return dict(zip(names, values, strict=True))
