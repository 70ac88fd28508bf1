# SPDX-License-Identifier: MIT
"""NCCL's own ``Socket`` network, called directly in a ``libnccl.so.2``: a baseline that needs no GPU.

The network is the table ``ncclNetSocket``, a local symbol that the official wheels keep in ``.symtab``. It moves host
memory and uses CUDA only to record the current device (``cudaGetDevice``), which fails without a driver. :func:`load`
overwrites the first bytes of the library's private copy of that function with "device 0, no error". Use it only in
processes that use NCCL for nothing else.

Nothing is downloaded here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from .._errors import BaguaNetError
from . import elf

__all__ = ["NcclLibraryUnusable", "SocketTable", "inspect", "load"]

_LIBRARY_NAME = "libnccl.so.2"
_TABLE = "ncclNetSocket"
_PATCHED = "cudaGetDevice"
_VERSION = "ncclGetVersion"

#: (first NCCL release, net API version that its sources call ncclNet_t, entries of that table); newest first.
#: From `typedef ncclNet_v… ncclNet_t` at the tags v2.18.3-1 to v2.30.7-1 of https://github.com/NVIDIA/nccl.
_APIS = (
    (23000, 12, 22),
    (22800, 11, 22),
    (22600, 10, 20),
    (22400, 9, 20),
    (22000, 8, 19),
    (21900, 7, 19),
    (21300, 6, 17),
)

#: `int cudaGetDevice(int *device) { *device = 0; return 0; }`
_PATCHES = {
    "x86_64": bytes.fromhex("c70700000000 31c0 c3"),  # movl $0,(%rdi); xor %eax,%eax; ret
    "aarch64": bytes.fromhex("1f0000b9 00008052 c0035fd6"),  # str wzr,[x0]; mov w0,#0; ret
}


class NcclLibraryUnusable(BaguaNetError):
    """This libnccl.so.2 has no Socket network that can be called."""


@dataclass(frozen=True)
class SocketTable:
    """The place of the Socket network in one library. Offsets count from the load address."""

    path: Path
    nccl_version: str
    """For instance "2.30.7"."""
    api: int
    """The table is an ``ncclNet_v<api>_t``; 6 to 12."""
    table_offset: int
    patch_offset: int
    """The entry of ``cudaGetDevice``."""
    anchor_offset: int
    """The entry of the exported ``ncclGetVersion``, which gives the load address."""


# ---- reading the symbol table ----


def _read_symbols(path: Path) -> dict[str, elf.Symbol]:
    try:
        machine = elf.machine(path)
        found = elf.symbols(path, (_TABLE, _PATCHED, _VERSION))
    except ValueError as error:
        raise NcclLibraryUnusable(f"{error}; name a {_LIBRARY_NAME}") from error
    except OSError as error:
        raise NcclLibraryUnusable(f"{path} cannot be read: {error.strerror}") from error
    if machine != platform.machine():
        raise NcclLibraryUnusable(f"{path} is for {machine} processors and this one is {platform.machine()}")
    return found


# ---- the library in memory ----


def _dlopen(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise NcclLibraryUnusable(f"{path} does not load: {error}") from error


def _version_code(library: ctypes.CDLL, path: Path) -> int:
    code = ctypes.c_int()
    if library[_VERSION](ctypes.byref(code)) != 0:
        raise NcclLibraryUnusable(f"{path} does not tell its version")
    return code.value


def _overwrite_code(address: int, code: bytes, path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    start = address - address % mmap.PAGESIZE
    length = ctypes.c_size_t(address + len(code) - start)
    run = mmap.PROT_READ | mmap.PROT_EXEC  # never without: another thread may be in code of the same page
    if libc.mprotect(ctypes.c_void_p(start), length, run | mmap.PROT_WRITE) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NcclLibraryUnusable(f"{path}: this system forbids changing loaded code ({reason})")
    ctypes.memmove(address, code, len(code))
    libc.mprotect(ctypes.c_void_p(start), length, run)


def inspect(path: Path) -> SocketTable:
    """Finds the Socket network in a library. Loads the library to read its version; changes nothing in it.

    Raises:
        NcclLibraryUnusable: it is not NCCL, was stripped of its symbols, or is older than 2.13.
    """
    path = path.resolve()
    symbols = _read_symbols(path)
    missing = [name for name in (_TABLE, _PATCHED, _VERSION) if name not in symbols]
    if missing:
        raise NcclLibraryUnusable(
            f"{path} has no symbol {missing[0]}: it is not NCCL, or it was stripped; "
            "take the one of an nvidia-nccl wheel"
        )
    code = _version_code(_dlopen(path), path)
    version = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    row = next((row for row in _APIS if code >= row[0]), None)
    if row is None:
        raise NcclLibraryUnusable(f"{path} is NCCL {version}; 2.13 is the oldest that can be called")
    _, api, entries = row
    size = symbols[_TABLE].size
    if size != entries * ctypes.sizeof(ctypes.c_void_p):
        raise NcclLibraryUnusable(f"{path} is NCCL {version}, whose network table of {size} bytes is not known here")
    return SocketTable(path, version, api, symbols[_TABLE].offset, symbols[_PATCHED].offset, symbols[_VERSION].offset)


def load(table: SocketTable) -> int:
    """Loads the library into this process, makes its Socket network callable without a GPU, and returns the
    address of the ``ncclNet_v<api>_t``. The address stays valid until the process ends. Repeated calls change nothing.

    Raises:
        NcclLibraryUnusable: the library does not load, or the system forbids changing its code.
    """
    library = _dlopen(table.path)
    anchor = ctypes.cast(library[_VERSION], ctypes.c_void_p).value
    assert anchor is not None
    base = anchor - table.anchor_offset
    patch = _PATCHES[platform.machine()]
    entry = base + table.patch_offset
    if ctypes.string_at(entry, len(patch)) != patch:
        _overwrite_code(entry, patch, table.path)
    return base + table.table_offset
