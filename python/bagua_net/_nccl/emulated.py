# SPDX-License-Identifier: MIT
"""NCCL's public functions in a process without a GPU: an unmodified libnccl.so.2 on the emulated GPU of
``libbagua-net-emulator.so``.

    nccl = emulated.open(Path("libnccl.so.2"))
    comm = nccl.comm_init_rank(nranks, nccl.get_unique_id(), rank)
    stream = nccl.stream()
    comm.all_reduce(buffer, buffer, count, DataType.FLOAT32, RedOp.SUM, stream)
    stream.synchronize()

Device memory is the process's own: any object with the buffer protocol may be passed, and must live until the stream is
done with it. The emulator changes the code of the library that it opens, so use it only in processes that use NCCL for
nothing else; :func:`probe` asks a child process.

``python -m bagua_net._nccl.emulated LIBRARY`` opens a library and prints its version.
"""

from __future__ import annotations

import functools
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import cffi

from .._errors import BaguaNetError
from .._native.plugin import header_path
from . import discovery

_EMULATOR = "libbagua-net-emulator.so"
_MACHINES = ("x86_64", "aarch64")
_ID_BYTES = 128
_ERROR_BYTES = 1024
_PROBE_TIMEOUT_S = 60.0

ffi = cffi.FFI()

#: emulator/bagua_net_emulator.h.
ffi.cdef("""
void *emu_open(const char *path, char *error, size_t size);
void *emu_stream_create(void);
int emu_stream_synchronize(void *stream);
int emu_stream_done(void *stream);
void emu_stream_destroy(void *stream);
const char *emu_problem(void);
""")

#: nccl.h, 2.18 and later. A release lacks functions of later ones: cffi looks each up when it is first used.
ffi.cdef("""
typedef void *ncclComm_t;
typedef void *cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;
int ncclGetVersion(int *version);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(ncclComm_t comm);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
int ncclCommFinalize(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, void *config);
int ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *made, void *config, int flags);
int ncclCommRevoke(ncclComm_t comm, int flags);
int ncclCommGetAsyncError(ncclComm_t comm, int *error);
int ncclCommCount(ncclComm_t comm, int *count);
int ncclCommUserRank(ncclComm_t comm, int *rank);
int ncclCommRegister(ncclComm_t comm, void *buffer, size_t size, void **handle);
int ncclCommDeregister(ncclComm_t comm, void *handle);
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int dtype, int residence, ncclComm_t comm);
int ncclRedOpDestroy(int op, ncclComm_t comm);
int ncclAllReduce(void *send, void *receive, size_t count, int dtype, int op, ncclComm_t, cudaStream_t);
int ncclReduce(void *send, void *receive, size_t count, int dtype, int op, int root, ncclComm_t, cudaStream_t);
int ncclReduceScatter(void *send, void *receive, size_t count, int dtype, int op, ncclComm_t, cudaStream_t);
int ncclAllGather(void *send, void *receive, size_t count, int dtype, ncclComm_t, cudaStream_t);
int ncclBroadcast(void *send, void *receive, size_t count, int dtype, int root, ncclComm_t, cudaStream_t);
int ncclSend(void *buffer, size_t count, int dtype, int peer, ncclComm_t, cudaStream_t);
int ncclRecv(void *buffer, size_t count, int dtype, int peer, ncclComm_t, cudaStream_t);
int ncclGroupStart(void);
int ncclGroupEnd(void);
""")

#: ncclInProgress, which is no failure: a communicator that was revoked has it for a while.
IN_PROGRESS = 7
NO_COLOR = -1
_HOST_SCALAR = 1
_SHRINK_DEFAULT, _SHRINK_ABORT = 0, 1

#: An object with the buffer protocol, what :func:`address` returned for one, or an address as a number.
Buffer = Any


class DataType(IntEnum):
    """ncclDataType_t."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10  # from 2.24 on
    FLOAT8E5M2 = 11


class RedOp(IntEnum):
    """ncclRedOp_t, the built-in ones."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class NcclUnusable(BaguaNetError):
    """This NCCL cannot be opened without a GPU here."""


class NcclFailed(BaguaNetError):
    """A function of NCCL failed, or an operation on a stream did. ``code`` is its ncclResult_t or cudaError_t."""

    def __init__(self, sentence: str, function: str, code: int) -> None:
        super().__init__(sentence)
        self.function = function
        self.code = code


def address(buffer: Buffer) -> Any:
    """The buffer's address as a C pointer, which keeps the buffer alive and saves work where it is passed often."""
    if isinstance(buffer, ffi.CData):
        return buffer
    return ffi.cast("void *", buffer) if isinstance(buffer, int) else ffi.from_buffer(buffer)


def _text(pointer: Any) -> str:
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace").strip()


class Nccl:
    """The NCCL of this process; :func:`open` makes it. Threads may call it as they may call NCCL."""

    def __init__(self, path: Path, emulator: Any, functions: Any) -> None:
        self.path = path
        self._emulator = emulator
        self._functions = functions
        code = ffi.new("int *")
        self.call("ncclGetVersion", code)
        self.version = discovery.decode_version(code[0])
        self._harmless = ""
        """NCCL's last warning, where it did no harm."""

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def problem(self) -> str:
        """The first thing that the emulated GPU could not answer, a sentence; "": none."""
        return _text(self._emulator.emu_problem())

    def has(self, function: str) -> bool:
        """Does this release have that function of NCCL's?"""
        return hasattr(self._functions, function)

    def error_string(self, code: int) -> str:
        """NCCL's own words for a result."""
        return _text(self._functions.ncclGetErrorString(code))

    def call(self, function: str, *arguments: Any, comm: Any = ffi.NULL) -> None:
        """Calls a function that returns an ncclResult_t.

        Args:
            comm: the ncclComm_t whose last error explains a failure.

        Raises:
            NcclFailed: it failed, or this release does not have it.
        """
        if not self.has(function):
            raise NcclFailed(f"NCCL {self.version_text} has no {function}", function, -1)
        code = getattr(self._functions, function)(*arguments)
        if code not in (0, IN_PROGRESS):
            raise self.failure(function, code, comm)

    def failure(self, function: str, code: int, comm: Any = ffi.NULL) -> NcclFailed:
        """The error for a result of that function, in NCCL's words and the emulator's."""
        last = _text(self._functions.ncclGetLastError(comm))
        cause = last if last != self._harmless else ""
        reasons = [function, f"{self.error_string(code)} (ncclResult_t {code})", cause, self.problem]
        return NcclFailed(": ".join(filter(None, reasons)), function, code)

    def forgive(self) -> None:
        """What NCCL has warned of until now is not the cause of a later failure. To be called while no operation is
        under way: NCCL's threads overwrite their last warning without a lock."""
        self._harmless = _text(self._functions.ncclGetLastError(ffi.NULL))

    def get_unique_id(self) -> bytes:
        """An id for :meth:`comm_init_rank`, to be sent to every rank. Raises NcclFailed."""
        made = ffi.new("ncclUniqueId *")
        self.call("ncclGetUniqueId", made)
        return bytes(ffi.buffer(made))

    def comm_init_rank(self, nranks: int, unique_id: bytes, rank: int) -> Comm:
        """A communicator. Blocks until all ranks have called it. Raises NcclFailed."""
        given = ffi.new("ncclUniqueId *")
        ffi.memmove(given, unique_id, _ID_BYTES)
        made = ffi.new("ncclComm_t *")
        self.call("ncclCommInitRank", made, nranks, given[0], rank)
        return Comm(self, made[0])

    def group_start(self) -> None:
        """Calls from here to :meth:`group_end` start together. Raises NcclFailed."""
        self.call("ncclGroupStart")

    def group_end(self) -> None:
        """Starts the calls of the group. Raises NcclFailed."""
        self.call("ncclGroupEnd")

    @contextmanager
    def group(self) -> Iterator[None]:
        """The calls inside the block start together, at its end. Raises NcclFailed."""
        self.group_start()
        yield
        self.group_end()

    def stream(self) -> Stream:
        """A new stream.

        Raises:
            MemoryError: there is no memory for it.
        """
        handle = self._emulator.emu_stream_create()
        if handle == ffi.NULL:
            raise MemoryError("no memory for a stream of the emulated GPU")
        return Stream(self, self._emulator, handle)


class Stream:
    """A cudaStream_t: its operations run one after another, on a thread of its own."""

    def __init__(self, nccl: Nccl, emulator: Any, handle: Any) -> None:
        self.handle = handle
        self._nccl = nccl
        self._emulator = emulator

    def synchronize(self) -> None:
        """Waits for everything on the stream.

        Raises:
            NcclFailed: an operation failed; ``code`` is the cudaError_t.
        """
        code = self._emulator.emu_stream_synchronize(self.handle)
        if code != 0:
            reasons = [f"the stream failed (cudaError_t {code})", self._nccl.problem]
            raise NcclFailed(": ".join(filter(None, reasons)), "emu_stream_synchronize", code)

    def done(self) -> bool:
        """Has everything on the stream finished? Never waits."""
        return bool(self._emulator.emu_stream_done(self.handle))

    def destroy(self) -> None:
        """Releases the stream. Repeated calls do nothing."""
        handle, self.handle = self.handle, ffi.NULL
        if handle != ffi.NULL:
            self._emulator.emu_stream_destroy(handle)


class Comm:
    """A communicator. Counts are elements; operations return when they are on the stream. All methods raise NcclFailed,
    also where this release lacks the function."""

    def __init__(self, nccl: Nccl, handle: Any) -> None:
        self.handle = handle
        self._nccl = nccl

    def _call(self, function: str, *arguments: Any) -> None:
        self._nccl.call(function, *arguments, comm=self.handle)

    def _integer(self, function: str) -> int:
        value = ffi.new("int *")
        self._call(function, self.handle, value)
        return int(value[0])

    # ---- the communicator ----

    @property
    def nranks(self) -> int:
        return self._integer("ncclCommCount")

    @property
    def rank(self) -> int:
        return self._integer("ncclCommUserRank")

    def get_async_error(self) -> int:
        """The ncclResult_t of what NCCL's threads have met; 0: nothing. May be called while another call waits."""
        return self._integer("ncclCommGetAsyncError")

    def last_error(self) -> str:
        """The last warning of this process's NCCL, in its words; "" where there was none."""
        return _text(self._nccl._functions.ncclGetLastError(self.handle))

    def failure(self, code: int) -> NcclFailed:
        """The error for a result of :meth:`get_async_error`."""
        return self._nccl.failure("ncclCommGetAsyncError", code, self.handle)

    def finalize(self) -> None:
        """Waits until all operations are over, on all ranks."""
        self._call("ncclCommFinalize", self.handle)

    def destroy(self) -> None:
        """Releases the communicator; all ranks call it. Repeated calls do nothing."""
        self._release("ncclCommDestroy")

    def abort(self) -> None:
        """Ends its operations and releases it, on this rank alone. Repeated calls do nothing."""
        self._release("ncclCommAbort")

    def _release(self, function: str) -> None:
        handle, self.handle = self.handle, ffi.NULL
        if handle != ffi.NULL:
            self._nccl.call(function, handle)

    def split(self, color: int, key: int) -> Comm | None:
        """A communicator of the ranks with this color, in the order of their keys; None for :data:`NO_COLOR`."""
        made = ffi.new("ncclComm_t *")
        self._call("ncclCommSplit", self.handle, color, key, made, ffi.NULL)
        return None if made[0] == ffi.NULL else Comm(self._nccl, made[0])

    def shrink(self, excluded: Sequence[int], *, abort: bool = False) -> Comm:
        """A communicator without these ranks, which do not call it. NCCL 2.27 and later.

        Args:
            abort: end this one's operations first.
        """
        made = ffi.new("ncclComm_t *")
        flags = _SHRINK_ABORT if abort else _SHRINK_DEFAULT
        ranks = ffi.new("int[]", list(excluded))
        self._call("ncclCommShrink", self.handle, ranks, len(excluded), made, ffi.NULL, flags)
        return Comm(self._nccl, made[0])

    def revoke(self) -> None:
        """Ends its operations; afterwards it can be split, shrunk and destroyed. NCCL 2.28 and later."""
        self._call("ncclCommRevoke", self.handle, 0)

    def register(self, buffer: Buffer, size: int) -> Any:
        """Registers ``size`` bytes and returns what :meth:`deregister` takes. NCCL 2.19 and later."""
        made = ffi.new("void **")
        self._call("ncclCommRegister", self.handle, address(buffer), size, made)
        return made[0]

    def deregister(self, registration: Any) -> None:
        self._call("ncclCommDeregister", self.handle, registration)

    def red_op_create_pre_mul_sum(self, scalar: bytes, dtype: int) -> int:
        """A reduction for this communicator: the sum of the elements times a scalar.

        Args:
            scalar: one element, as memory holds it.
        """
        op = ffi.new("int *")
        value = ffi.new("char[]", scalar)
        self._call("ncclRedOpCreatePreMulSum", op, value, dtype, _HOST_SCALAR, self.handle)
        return int(op[0])

    def red_op_destroy(self, op: int) -> None:
        self._call("ncclRedOpDestroy", op, self.handle)

    # ---- operations ----

    def all_reduce(self, send: Buffer, receive: Buffer, count: int, dtype: int, op: int, stream: Stream) -> None:
        """Both buffers have ``count`` elements; they may be the same."""
        self._call("ncclAllReduce", address(send), address(receive), count, dtype, op, self.handle, stream.handle)

    def reduce(self, send: Buffer, receive: Buffer, count: int, dtype: int, op: int, root: int, stream: Stream) -> None:
        """Only the root's ``receive`` is written."""
        self._call("ncclReduce", address(send), address(receive), count, dtype, op, root, self.handle, stream.handle)

    def reduce_scatter(self, send: Buffer, receive: Buffer, count: int, dtype: int, op: int, stream: Stream) -> None:
        """``receive`` has ``count`` elements, ``send`` that many for each rank."""
        self._call("ncclReduceScatter", address(send), address(receive), count, dtype, op, self.handle, stream.handle)

    def all_gather(self, send: Buffer, receive: Buffer, count: int, dtype: int, stream: Stream) -> None:
        """``send`` has ``count`` elements, ``receive`` that many for each rank."""
        self._call("ncclAllGather", address(send), address(receive), count, dtype, self.handle, stream.handle)

    def broadcast(self, send: Buffer, receive: Buffer, count: int, dtype: int, root: int, stream: Stream) -> None:
        """Only the root's ``send`` is read; both may be the same buffer."""
        self._call("ncclBroadcast", address(send), address(receive), count, dtype, root, self.handle, stream.handle)

    def send(self, buffer: Buffer, count: int, dtype: int, peer: int, stream: Stream) -> None:
        self._call("ncclSend", address(buffer), count, dtype, peer, self.handle, stream.handle)

    def recv(self, buffer: Buffer, count: int, dtype: int, peer: int, stream: Stream) -> None:
        self._call("ncclRecv", address(buffer), count, dtype, peer, self.handle, stream.handle)


# ---- opening ----


def emulator_path() -> Path:
    """The emulator of this installation.

    Raises:
        NcclUnusable: it was never built, or does not work on this processor.
    """
    if platform.machine() not in _MACHINES:
        raise NcclUnusable(
            f"the emulated GPU is written for {' and '.join(_MACHINES)} processors, and this one is "
            f"{platform.machine()}; `bagua-net bench` needs no GPU"
        )
    path = header_path().with_name(_EMULATOR)
    if not os.path.isfile(path):
        raise NcclUnusable(
            f"{path} does not exist; install the package (pip install .), "
            "or build in the source tree: cmake -S . -B build && cmake --build build"
        )
    return path


@functools.cache
def open(path: Path, emulator: Path | None = None) -> Nccl:
    """Opens an NCCL on an emulated GPU: one per process, again with the same path. It sets NCCL's variables that this
    needs (``NCCL_TOPO_FILE``, ``NCCL_P2P_DISABLE`` and others) in the environment of the process.

    Args:
        emulator: of another build than this installation's.

    Raises:
        NcclUnusable: the file is not an NCCL that can be emulated, or a variable asks for what an emulated GPU lacks.
    """
    library = emulator or emulator_path()
    try:
        emu = ffi.dlopen(str(library), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        reason = str(error).partition(".  Additionally")[0]  # cffi's search for another file, which means nothing here
        raise NcclUnusable(f"{library} does not load: {reason}; build it on this machine") from error
    sentence = ffi.new("char[]", _ERROR_BYTES)
    handle = emu.emu_open(os.fsencode(path), sentence, _ERROR_BYTES)
    if handle == ffi.NULL:
        raise NcclUnusable(_text(sentence).rstrip("."))
    return Nccl(path, emu, ffi.dlopen(handle))


@functools.cache
def probe(path: Path) -> tuple[int, int, int]:
    """The version of an NCCL that can be opened, asked of a child process: this one does not load it.

    Raises:
        NcclUnusable: as for :func:`open`, or the child process crashed.
    """
    root = Path(__file__).resolve().parents[2]
    search = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", __name__, str(path)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NcclUnusable(f"{path} could not be opened within {_PROBE_TIMEOUT_S:g} s") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise NcclUnusable(f"{path} cannot be opened: the process that tried was killed by {name}")
    if done.returncode != 0:
        raise NcclUnusable((done.stderr.strip().splitlines() or [f"{path} cannot be opened"])[-1])
    major, minor, patch = map(int, done.stdout.splitlines()[-1].split("."))
    return major, minor, patch


def main() -> None:
    try:
        print(open(Path(sys.argv[1])).version_text)
    except BaguaNetError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
