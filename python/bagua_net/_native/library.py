# SPDX-License-Identifier: MIT
"""The two libraries, called through cffi in ABI mode. The declarations come from their public headers.

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
from .plugin import HOST_NAME, header_path, host_header_path, host_path, plugin_path

#: Allocates and reads C data, of both libraries. Loading one adds its declarations.
ffi = cffi.FFI()

#: Two loads at once would mix types of one with functions of the other.
_loading = threading.RLock()

#: What the package uses beside pointers to the headers' own types.
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


class Library:
    """A shared library of the package, with its header, loaded once per process."""

    def __init__(self, find: Callable[[], Path], header: Path, version_function: str, version: int) -> None:
        """
        Args:
            find: the path of the package's own build.
            version_function: of the library; its required result is ``version``. The header says when it is raised.
        """
        self._find, self._header = find, header
        self._version_function, self.version = version_function, version
        self._chosen: Path | None = None
        self._loaded: Any = None

    @property
    def path(self) -> Path:
        return self._chosen or self._find()

    def use(self, library: Path) -> None:
        """Makes :meth:`load` take another build. Call it before the first load.

        A header beside that library is used with it.
        """
        self._chosen = library

    def load(self) -> Any:
        """The library's ``bnet_*`` functions as attributes.

        Raises:
            LibraryNotFound: the library or its header was never built.
            LibraryUnusable: it does not load, or has another version.
        """
        if self._loaded is None:
            with _loading:
                if self._loaded is None:
                    self._loaded = self._open()
        return self._loaded

    def _open(self) -> Any:
        path = self.path
        beside = path.with_name(self._header.name)
        ffi.cdef(_declarations(beside if beside.is_file() else self._header), override=True)
        try:
            lib = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
        except OSError as error:
            raise LibraryUnusable(f"{path} does not load: {error}; build it on this machine") from error
        found = getattr(lib, self._version_function)()
        if found != self.version:
            raise LibraryUnusable(
                f"{path} has interface version {found} and this package needs {self.version}; "
                "build or install both together"
            )
        _opened.append(lib)
        for each in _opened:  # cdef has cleared what was looked up in the other one
            _look_up(each)
        return lib


#: Those of this process.
_opened: list[Any] = []

#: The network for NCCL, with what it tells about this machine and process.
PLUGIN = Library(plugin_path, header_path(), "bnet_abi_version", 9)
#: Collectives and messages on host memory, codecs.
HOST = Library(host_path, host_header_path(), "bnet_host_abi_version", 3)

load, load_host = PLUGIN.load, HOST.load


def use(plugin: Path) -> None:
    """Makes :func:`load` take the plugin of another build, and :func:`load_host` the library beside it, if there is.

    Call it before the first load.
    """
    PLUGIN.use(plugin)
    host = plugin.with_name(HOST_NAME)
    if host.is_file():
        HOST.use(host)


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
    """Functions of the host library that never wait, as attributes. They keep the GIL; pointers are :func:`address`."""
    patient()  # from the same file, which an installation may replace later
    return _typed(ctypes.PyDLL, QUICK)


@functools.cache
def patient() -> Any:
    """Functions that wait, and release the GIL. They are those that ctypes calls at less cost than cffi."""
    return _typed(ctypes.CDLL, PATIENT)


def _typed(kind: type[ctypes.CDLL], functions: dict[str, tuple[Any, ...]]) -> Any:
    load_host()
    library = kind(str(HOST.path))
    for name, (result, *parameters) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


def address(pointer: Any) -> int:
    """Of a cffi pointer."""
    return int(ffi.cast("uintptr_t", pointer))


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
