# SPDX-License-Identifier: MIT
"""One rank of a measurement: a process that loads one transport, runs one load, and ends.

NCCL and the plugin read their settings once per process, so a process measures once. The parent sends lines of JSON
through stdin: a :class:`RankSpec`, the peers' handles, "go" and "close". The rank answers each by one line on stdout,
``{"error": …}`` after a failure. The loops run in C with the interpreter lock released.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bagua_net._errors import LibraryUnusable
from bagua_net._native import library
from bagua_net._nccl.socket_network import SocketTable, load
from benchmarks.loads.ipc import serve

_OURS_API = 12


@dataclass(frozen=True)
class RankSpec:
    """What one rank does. Times in seconds, sizes in bytes."""

    rank: int
    kind: str
    """"raw": plain sockets; "nccl": the Socket network of an NCCL wheel; "ours": the plugin."""
    loops: str
    """Path of libtraffic.so."""
    library: str
    """Path of libnccl.so.2 or of the plugin; "" for plain sockets."""
    table: dict[str, Any]
    """The fields of a :class:`SocketTable` for "nccl"."""
    address: str
    sndbuf: int
    work: str
    """A key of :data:`scenarios.WORKS`, but for "collective"."""
    ranks: int
    devices: int
    """Number of the network's devices over which the connections are spread."""
    nap_us: int
    lanes: int
    """To all peers together."""
    inflight: int
    size: int
    warm_up_s: float
    window_s: float
    warm_up_rounds: int
    rounds: int
    connect_timeout_s: float
    together: int
    """Of "connections": how many are made at a time."""
    coupled: bool
    """A message is sent only once one has come, as in a ring; with one lane."""


class TrafficError(Exception):
    """A loop in C reported an error; the text is its message."""


class _Usage(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double) for name in ("user", "system", "driver_user", "driver_system", "softirq", "switches")
    ]


class _Window(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint64),
        ("slowest", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("used", _Usage),
    ]


def _window(window: _Window) -> dict[str, Any]:
    used = {name: getattr(window.used, name) for name, *_ in _Usage._fields_}
    return {"bytes": window.bytes, "slowest": window.slowest, "seconds": window.seconds, "used": used}


def _resources(spec: RankSpec) -> dict[str, float]:
    """Resources of this process: threads, descriptors, and MiB of resident memory without the message buffers."""
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    messages = 2 * spec.lanes * spec.inflight * spec.size
    return {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,  # without the one that reads this list
        "memory_mib": int(resident.split()[1]) / 1024 - messages / (1 << 20),
    }


def _table_of(spec: RankSpec) -> tuple[int, int]:
    """(address of the ncclNet table, its API version)."""
    if spec.kind == "nccl":
        table = SocketTable(**{**spec.table, "path": Path(spec.table["path"])})
        return load(table), table.api
    plugin = ctypes.CDLL(spec.library)
    plugin.bnet_net_table.restype = ctypes.c_void_p
    address = plugin.bnet_net_table(_OURS_API)
    if not address:
        raise TrafficError(f"{spec.library} has no table of version {_OURS_API}")
    return int(address), _OURS_API


class _Loops:
    """p2p_* or raw_* of libtraffic.so, which have the same signatures (traffic.h)."""

    def __init__(self, spec: RankSpec) -> None:
        self._spec = spec
        self._library = ctypes.CDLL(spec.loops)
        self._library.traffic_error.restype = ctypes.c_char_p
        self._prefix = "raw_" if spec.kind == "raw" else "p2p_"
        self._object = ctypes.c_void_p()
        counts = (spec.lanes, spec.inflight, ctypes.c_size_t(spec.size))
        out = ctypes.byref(self._object)
        if spec.kind == "raw":
            self._call("create", out, spec.address.encode(), spec.sndbuf, *counts)
        else:
            address, api = _table_of(spec)
            self._call("create", out, ctypes.c_void_p(address), api, spec.devices, *counts)
            self._library.p2p_set_nap(self._object, spec.nap_us)
            self._library.p2p_set_coupled(self._object, spec.coupled)
        handle_size = self._library[self._prefix + "handle_size"]
        handle_size.restype = ctypes.c_size_t
        self._handles_size = spec.lanes * int(handle_size(self._object))

    def _call(self, name: str, *arguments: Any) -> None:
        if self._library[self._prefix + name](*arguments) != 0:
            raise TrafficError(self._library.traffic_error().decode())

    def listen(self) -> bytes:
        handles = ctypes.create_string_buffer(self._handles_size)
        self._call("listen", self._object, handles)
        return handles.raw

    def connect(self, peer_handles: bytes) -> None:
        timeout = ctypes.c_double(self._spec.connect_timeout_s)
        self._call("connect", self._object, ctypes.c_char_p(peer_handles), timeout)

    def _reply(self, window: _Window) -> dict[str, Any]:
        """The counts. Called while the connections are open."""
        devices = 1 if self._spec.kind == "raw" else self._library.p2p_devices(self._object)
        return {**_window(window), **_resources(self._spec), "devices": devices}

    def stream(self) -> dict[str, Any]:
        spec, window = self._spec, _Window()
        times = (ctypes.c_double(spec.warm_up_s), ctypes.c_double(spec.window_s))
        self._call("stream", self._object, ctypes.c_size_t(spec.size), *times, ctypes.byref(window))
        return self._reply(window)

    def idle(self) -> dict[str, Any]:
        window = _Window()
        self._call("idle", self._object, ctypes.c_double(self._spec.window_s), ctypes.byref(window))
        return self._reply(window)

    def pingpong(self) -> dict[str, Any]:
        spec = self._spec
        samples = (ctypes.c_double * spec.rounds)()
        first = int(spec.rank == 0)
        counts = (spec.warm_up_rounds, spec.rounds)
        self._call("pingpong", self._object, first, ctypes.c_size_t(spec.size), *counts, samples)
        return {"half_us": sorted(samples)[spec.rounds // 2]} if first else {}

    def work(self) -> dict[str, Any]:
        return {"pingpong": self.pingpong, "idle": self.idle}.get(self._spec.work, self.stream)()

    def close(self) -> dict[str, Any]:
        destroy = self._library[self._prefix + "destroy"]
        destroy.restype = None
        destroy(self._object)
        return {}


class _Calls(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_uint64),
        ("longest", ctypes.c_double),
        ("longest_wait", ctypes.c_double),
        ("began", ctypes.c_double),
        ("ended", ctypes.c_double),
    ]


def _lock_wait(spec: RankSpec) -> dict[str, float]:
    """The plugin's longest wait for its lock, in seconds, where it says so: NCCL and older builds do not."""
    if spec.kind != "ours":
        return {}
    library.use(Path(spec.library))
    try:
        plugin = library.load()
    except LibraryUnusable:
        return {}
    counters = library.ffi.new("bnet_counters_t *")
    plugin.bnet_counters(counters)
    return {"lock_wait": counters.lock_wait_us / 1e6}


class _Many:
    """many_* of libtraffic.so: making connections, having them, and ending them."""

    def __init__(self, spec: RankSpec) -> None:
        self._spec = spec
        self._library = ctypes.CDLL(spec.loops)
        self._library.traffic_error.restype = ctypes.c_char_p
        self._library.many_handle_size.restype = ctypes.c_size_t
        self._object = ctypes.c_void_p()
        self._reply: dict[str, Any] = {}
        address, api = _table_of(spec)
        out, size = ctypes.byref(self._object), ctypes.c_size_t(spec.size)
        self._call("create", out, ctypes.c_void_p(address), api, spec.lanes, size)
        self._before = _resources(spec)

    def _call(self, name: str, *arguments: Any) -> None:
        if self._library["many_" + name](*arguments) != 0:
            raise TrafficError(self._library.traffic_error().decode())

    def _phase(self, name: str, *arguments: Any) -> None:
        """A phase whose calls are timed."""
        calls = _Calls()
        self._call(name, self._object, *arguments, ctypes.byref(calls))
        self._keep(name, calls)

    def _keep(self, name: str, calls: _Calls) -> None:
        self._reply[name] = {field: getattr(calls, field) for field, *_ in _Calls._fields_}

    def listen(self) -> bytes:
        handles = ctypes.create_string_buffer(self._spec.lanes * int(self._library.many_handle_size(self._object)))
        self._phase("listen", handles)
        return handles.raw

    def connect(self, peer_handles: bytes) -> None:
        timeout = ctypes.c_double(self._spec.connect_timeout_s)
        self._phase("connect", ctypes.c_char_p(peer_handles), self._spec.together, timeout)
        after, ends = _resources(self._spec), 2 * self._spec.lanes
        self._reply["held"] = {name: (after[name] - self._before[name]) / ends for name in after}
        self._call("register", self._object)

    def work(self) -> dict[str, Any]:
        spec, idle, moving, calls = self._spec, _Window(), _Window(), _Calls()
        self._library.traffic_idle(ctypes.c_double(spec.window_s), ctypes.byref(idle))
        times = (ctypes.c_double(spec.warm_up_s), ctypes.c_double(spec.window_s))
        self._call("move", self._object, *times, ctypes.byref(calls), ctypes.byref(moving))
        self._keep("move", calls)
        self._reply |= {"idle": _window(idle), "moving": _window(moving), "threads": _resources(spec)["threads"]}
        return self._reply

    def close(self) -> dict[str, Any]:
        self._phase("close")
        return {"close": self._reply["close"], **_lock_wait(self._spec)}


def _take_part(out: TextIO) -> None:
    def answer(reply: dict[str, Any]) -> None:
        out.write(json.dumps(reply) + "\n")

    spec = RankSpec(**json.loads(sys.stdin.readline()))
    loops = _Many(spec) if spec.work == "connections" else _Loops(spec)
    answer({"handles": loops.listen().hex()})
    loops.connect(bytes.fromhex(json.loads(sys.stdin.readline())))
    answer({})
    sys.stdin.readline()
    answer(loops.work())
    sys.stdin.readline()
    answer(loops.close())


if __name__ == "__main__":
    serve(_take_part)
