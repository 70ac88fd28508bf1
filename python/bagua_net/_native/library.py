# SPDX-License-Identifier: MIT
"""The library, called through cffi in ABI mode. The declarations come from its public header.

cffi releases the GIL in every call. Where another thread runs Python, the caller gets it back some milliseconds later
(``sys.getswitchinterval``). Calls that never wait and are made for each operation keep it, by ctypes: :func:`quick`.
ctypes takes any integer and passes on its lowest bits, so who calls it checks what users give.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cffi

from .._errors import LibraryNotFound, LibraryUnusable
from .plugin import header_path, plugin_path

#: The required result of ``bnet_abi_version()``; the header says when it is raised.
ABI_VERSION = 5

#: Allocates and reads C data. :func:`load` adds the declarations.
ffi = cffi.FFI()

_chosen: Path | None = None

#: The library, once it is loaded. Two loads at once would mix types of one with functions of the other.
_lib: Any = None
_loading = threading.RLock()

#: What the package uses beside pointers to the header's own types.
_OTHER_TYPES = ("char[]", "size_t[]", "void *[]", "void *", "float *", "uint8_t *", "uintptr_t", "int(*)(void)")

_P = ctypes.c_void_p

_REGION = re.compile(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", re.DOTALL)


def _declarations(header: Path) -> str:
    try:
        region = _REGION.search(header.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LibraryNotFound(f"{header} does not exist; it is installed beside the library: install again") from None
    if region is None:
        raise LibraryUnusable(f"{header} lacks its cffi markers; install the package again")
    return region.group(1)


def use(library: Path) -> None:
    """Makes :func:`load` take the library of another build. Call it before the first load.

    A header beside that library is used with it.
    """
    global _chosen
    _chosen = library


#: Of :func:`quick`: the type of the result, and of the parameters. Pointers are addresses.
QUICK: dict[str, tuple[Any, ...]] = {
    "bnet_messages_recv": (ctypes.c_int, _P, _P, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, _P),
    "bnet_messages_send": (ctypes.c_int, _P, _P, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, _P),
    "bnet_queue_enter": (None, _P, _P),
    "bnet_queue_hold": (ctypes.c_int, _P, _P),
    "bnet_queue_leave": (None, _P, _P),
    "bnet_queue_post": (ctypes.c_int, _P, _P, ctypes.c_double, _P),
    "bnet_ticket_over": (ctypes.c_int, _P),
    "bnet_ticket_release": (None, _P),
    "bnet_ticket_result": (ctypes.c_int, _P, _P),
}
#: Of :func:`patient`.
PATIENT: dict[str, tuple[Any, ...]] = {"bnet_ticket_wait": (ctypes.c_int, _P, ctypes.c_double)}


@functools.cache
def quick() -> Any:
    """Functions of the library that never wait, as attributes. They keep the GIL; pointers are :func:`address`."""
    patient()  # from the same file, which an installation may replace later
    return _typed(ctypes.PyDLL, QUICK)


@functools.cache
def patient() -> Any:
    """Functions that wait, and release the GIL. They are those that ctypes calls at less cost than cffi."""
    return _typed(ctypes.CDLL, PATIENT)


def _typed(kind: type[ctypes.CDLL], functions: dict[str, tuple[Any, ...]]) -> Any:
    load()
    library = kind(str(_chosen or plugin_path()))
    for name, (result, *parameters) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


def address(pointer: Any) -> int:
    """Of a cffi pointer."""
    return int(ffi.cast("uintptr_t", pointer))


def load() -> Any:
    """The library's ``bnet_*`` functions as attributes. Loads once per process.

    Raises:
        LibraryNotFound: the library or its header was never built.
        LibraryUnusable: it does not load, or has another ABI version than :data:`ABI_VERSION`.
    """
    global _lib
    if _lib is None:
        with _loading:
            if _lib is None:
                _lib = _loaded()
    return _lib


def _loaded() -> Any:
    path = _chosen or plugin_path()
    beside = path.with_name(header_path().name)
    ffi.cdef(_declarations(beside if beside.is_file() else header_path()), override=True)
    try:
        lib = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise LibraryUnusable(f"{path} does not load: {error}; build it on this machine") from error
    found = lib.bnet_abi_version()
    if found != ABI_VERSION:
        raise LibraryUnusable(
            f"{path} has interface version {found} and this package needs {ABI_VERSION}; build or install both together"
        )
    _look_up(lib)
    return lib


def _look_up(lib: Any) -> None:
    """Looks up all names and types. cffi otherwise does it at the first use of each, under a lock: a signal handler
    that interrupts that use, and ends a group, could wait for its own thread."""
    for name in dir(lib):
        with contextlib.suppress(AttributeError):  # an older build may lack it: its use says so
            getattr(lib, name)
    for name in ffi.list_types()[0]:
        ffi.typeof(f"{name} *")
        ffi.typeof(f"{name} **")
    for other in _OTHER_TYPES:
        ffi.typeof(other)


def _leave_to_parent() -> None:
    """In a child of fork(), which lacks the thread that may have been loading."""
    global _loading
    _loading = threading.RLock()


os.register_at_fork(after_in_child=_leave_to_parent)


def text(pointer: Any) -> str | None:
    """A C string of the library as Python text; None for NULL."""
    return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def rows(kind: str, count: int, get: Callable[[int, Any], int]) -> Iterator[Any]:
    """The rows that ``get(index, row)`` fills in for each index below count, up to the first that it refuses.

    Args:
        kind: the C type of a row. All rows share one object: a row is valid until the next one is fetched.
    """
    row = ffi.new(f"{kind} *")
    for index in range(count):
        if get(index, row) != 0:
            return
        yield row
