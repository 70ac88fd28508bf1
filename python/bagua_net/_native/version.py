# SPDX-License-Identifier: MIT
"""The version of this installation. CMakeLists.txt defines it; the wheel's metadata and the library carry it."""

from __future__ import annotations

import ctypes
from importlib import metadata

from .._errors import BaguaNetError
from .plugin import plugin_path


def _from_library() -> str:
    """For a bare source tree, which has no metadata."""
    try:
        function = ctypes.CDLL(str(plugin_path())).bnet_version
    except (BaguaNetError, OSError, AttributeError):
        return "0+unknown"
    function.restype = ctypes.c_char_p
    return bytes(function()).decode("ascii", "replace")


def version() -> str:
    """The installed version, such as ``"0.1.0"``; ``"0+unknown"`` in a source tree that was never built."""
    try:
        return metadata.version("bagua-net")
    except metadata.PackageNotFoundError:
        return _from_library()
