# SPDX-License-Identifier: MIT
"""The paths of the libraries, the plugin's names, and which paths NCCL accepts."""

from __future__ import annotations

import os
from pathlib import Path

from .._errors import LibraryNotFound, PluginPathInvalid, PluginPathTooLong

#: The library's file name, which is also its SONAME.
LIBRARY_NAME = "libnccl-net-bagua.so"
#: The other library, of the collectives on host memory.
HOST_NAME = "libbagua-net-host.so"
#: NCCL expands it to ``libnccl-net-bagua.so``; the only form of NCCL_NET_PLUGIN that NCCL up to 2.20 takes.
SHORT_NAME = "bagua"
#: The network's name, for NCCL_NET.
NETWORK_NAME = "BaguaNet"
#: Bytes that NCCL keeps of NCCL_NET_PLUGIN; it truncates a longer value silently.
MAX_PATH_BYTES = 254

_LIB_DIR = Path(__file__).resolve().parents[1] / "lib"


def header_path() -> Path:
    """The public header of :func:`plugin_path`'s library; it may not exist."""
    return _LIB_DIR / "bagua_net.h"


def plugin_path() -> Path:
    """The absolute path of the library in this installation.

    Raises:
        LibraryNotFound: it was never built.
    """
    return _built(LIBRARY_NAME)


def host_header_path() -> Path:
    """The public header of :func:`host_path`'s library; it may not exist."""
    return _LIB_DIR / "bagua_net_host.h"


def host_path() -> Path:
    """The absolute path of that library in this installation. LibraryNotFound as above."""
    return _built(HOST_NAME)


def _built(name: str) -> Path:
    path = _LIB_DIR / name
    if not path.is_file():
        raise LibraryNotFound(
            f"{path} does not exist; install the package (pip install .), "
            "or build in the source tree: cmake -S . -B build && cmake --build build"
        )
    return path


def check_path(
    path: Path, *, remedy: str = "install into a shorter directory, or use `bagua-net enable`, which makes a copy"
) -> None:
    """Would NCCL 2.21 or later load the library by this path?

    Args:
        remedy: what the user can do about a path that is too long.

    Raises:
        PluginPathTooLong: more than 254 bytes.
        PluginPathInvalid: a comma (NCCL 2.27 and later split there) or a newline.
    """
    raw = os.fsencode(path)
    if len(raw) > MAX_PATH_BYTES:
        raise PluginPathTooLong(f"{path} is {len(raw)} bytes long and NCCL keeps {MAX_PATH_BYTES} of them; {remedy}")
    if b"," in raw or b"\n" in raw:
        raise PluginPathInvalid(
            f"{str(path)!r} holds a comma or a newline, where NCCL cuts NCCL_NET_PLUGIN; install into another directory"
        )
