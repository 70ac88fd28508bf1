# SPDX-License-Identifier: MIT
"""NCCL's own host code without a GPU: an unmodified libnccl.so.2 on an emulated one, which plays NCCL's kernels on this
processor. With the plugin, with NCCL's own Socket network, and with any other plugin.

NCCL chooses its network once per process, so each network has processes of its own, which take turns. The job's buffers
are passed to NCCL as they are.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._errors import BaguaNetError
from ..._native.plugin import NETWORK_NAME, plugin_path
from ..._native.version import version as own_version
from ..._nccl import debug_log, discovery, emulated, net_plugin
from ..._nccl.emulated import DataType, RedOp
from ..workload.config import Config
from .base import Bound, Call, Job, Kind, NetworkFailed, Place

_SOCKET = "Socket"
#: Bytes that may be under way before a call waits for them, so that a limit on the time without progress is one on
#: these, not on a whole round; and what a call counts for beside its bytes.
_MOST_QUEUED = 256 << 20
_CALL_BYTES = 1 << 20
_WATCH_SECONDS = 0.2


class _Watch:
    """Ends the process where NCCL cannot end a wait: after an error that a thread of NCCL met, or without progress."""

    def __init__(self, name: str, timeout: float, give_up: Callable[[BaguaNetError], Any]) -> None:
        self._name = name
        self._timeout = timeout
        self._give_up = give_up
        self._deadline: float | None = None
        self._comm: emulated.Comm | None = None
        self._comm_lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bagua-net-watch", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A call starts, which must end within the timeout."""
        self._deadline = time.monotonic() + self._timeout

    def end(self) -> None:
        """Nothing is under way."""
        self._deadline = None

    def over(self, comm: emulated.Comm | None) -> None:
        """Watches this communicator as well; None: no longer, which must come before its end."""
        with self._comm_lock:
            self._comm = comm

    def close(self) -> None:
        """Returns when the thread has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_WATCH_SECONDS):
            reason = self._reason()
            if reason:
                self._give_up(NetworkFailed(f"{self._name}: {reason}"))

    def _reason(self) -> str:
        deadline = self._deadline
        if deadline is None:
            return ""
        with self._comm_lock:
            code = self._comm.get_async_error() if self._comm is not None else 0
            if self._comm is not None and code not in (0, emulated.IN_PROGRESS):
                return str(self._comm.failure(code))
        return f"no progress within {self._timeout:g} s" if time.monotonic() > deadline else ""


class EmulatedTransport:
    """One rank of a communicator."""

    def __init__(self, name: str, network: str, config: Config, place: Place) -> None:
        self._name = name
        self._network = network
        self._rank = place.rank
        self._nranks = config.nranks
        self._nccl, self._log = _opened(config)
        self._watch = _Watch(name, config.timeout, place.give_up)
        self._queued = 0
        self.evidence: list[str] = []
        self.row = self._try(self._nccl.get_unique_id) if place.rank == 0 else b""

    def connect(self, rows: list[bytes]) -> None:
        self._watch.begin()
        self._comm = self._try(lambda: self._nccl.comm_init_rank(self._nranks, rows[0], self._rank))
        self._nccl.forgive()
        self._watch.over(self._comm)
        self._stream = self._nccl.stream()
        self._flag = memoryview(bytearray(4))
        self.barrier()
        self._check_network()

    def _check_network(self) -> None:
        if self._log is None:
            self.evidence = ["NCCL_DEBUG is set, so NCCL's own log has its lines and choices"]
            return
        lines = self._log.new_lines()
        self.evidence = debug_log.evidence(lines)
        used = debug_log.network(lines)
        if used is not None and used.lower() != self._network.lower():
            raise NetworkFailed(f"{self._name}: NCCL uses the network {used}, not {self._network}")

    def _try(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except emulated.NcclFailed as error:
            reason = self._log.explain(error) if self._log is not None else str(error)
            raise NetworkFailed(f"{self._name}: {reason}") from error

    # ---- jobs ----

    def bind(self, job: Job) -> Bound:
        launch = self._launcher(job)
        size = max(len(job.send), len(job.receive)) + _CALL_BYTES
        if self._log is not None:
            self._log.new_lines()

        def call() -> None:
            self._watch.begin()
            self._try(launch)
            self._queued += size
            if self._queued > _MOST_QUEUED:
                self._finish()

        return Bound(call, self._finish, chosen=self._chosen)

    def _finish(self) -> None:
        self._watch.begin()
        self._try(self._stream.synchronize)
        self._watch.end()
        self._queued = 0

    def _chosen(self) -> str:
        return ", ".join(debug_log.choices(self._log.new_lines())) if self._log is not None else ""

    def _launcher(self, job: Job) -> Call:
        """The job's call of NCCL."""
        comm, stream, count = self._comm, self._stream, job.count
        send, receive = emulated.address(job.send), emulated.address(job.receive)
        dtype, redop = DataType[job.dtype.upper()], RedOp[job.redop.upper()]
        calls: dict[str, Call] = {
            "allreduce": lambda: comm.all_reduce(send, receive, count, dtype, redop, stream),
            "reduce_scatter": lambda: comm.reduce_scatter(send, receive, count, dtype, redop, stream),
            "all_gather": lambda: comm.all_gather(send, receive, count, dtype, stream),
            "broadcast": lambda: comm.broadcast(send, receive, count, dtype, 0, stream),
        }
        return calls[job.op] if job.op in calls else self._group(job)

    def _group(self, job: Job) -> Call:
        """The operations that NCCL programs write, in every release, as a group of sends and receives."""
        comm, stream, count, dtype = self._comm, self._stream, job.count, DataType[job.dtype.upper()]
        following, preceding = (self._rank + 1) % self._nranks, (self._rank - 1) % self._nranks
        everyone = list(range(self._nranks))
        to, of = (everyone, everyone) if job.op == "all_to_all" else ([following], [preceding])
        sends, receives = _blocks(job.send, to), _blocks(job.receive, of)

        def call() -> None:
            with self._nccl.group():
                for peer, block in sends:
                    comm.send(block, count, dtype, peer, stream)
                for peer, block in receives:
                    comm.recv(block, count, dtype, peer, stream)

        return call

    def barrier(self) -> None:
        flag = emulated.address(self._flag)
        self._watch.begin()
        self._try(lambda: self._comm.all_reduce(flag, flag, 1, DataType.INT32, RedOp.SUM, self._stream))
        self._finish()

    def close(self) -> None:
        self._watch.begin()
        self._watch.over(None)
        self._try(self._comm.destroy)
        self._watch.close()
        self._stream.destroy()


def _blocks(memory: memoryview, peers: list[int]) -> list[tuple[int, Any]]:
    """(peer, the address of its block): the memory in equal parts, one for each peer."""
    size = len(memory) // len(peers)
    return [(peer, emulated.address(memory[at * size : (at + 1) * size])) for at, peer in enumerate(peers)]


# ---- the networks ----


@functools.cache
def _opened(config: Config) -> tuple[emulated.Nccl, debug_log.DebugLog | None]:
    """The NCCL of this process and its log, which starts first."""
    log = debug_log.DebugLog.start()
    return emulated.open(discovery.libraries(config.nccl)[0]), log


def _library(config: Config) -> tuple[Path, tuple[int, int, int]]:
    """The NCCL to measure and its version. Does not load it into this process."""
    path = discovery.libraries(config.nccl)[0]
    return path, emulated.probe(path)


def version(config: Config) -> str:
    """The version of the NCCL that would be measured, such as "2.30.7".

    Raises:
        NcclNotFound: NCCL is not installed here.
        NcclUnusable: it cannot be opened without a GPU.
    """
    return ".".join(map(str, _library(config)[1]))


def _with(plugin: Path, config: Config) -> dict[str, str]:
    path, release = _library(config)
    return {discovery.LIBRARY_VARIABLE: str(path), **net_plugin.variables(plugin, release)}


def _other(config: Config) -> Path:
    return Path(config.net_plugin).absolute()


def _environment_bagua(config: Config) -> dict[str, str]:
    return {**_with(plugin_path(), config), "NCCL_NET": NETWORK_NAME}


def _environment_socket(config: Config) -> dict[str, str]:
    return {discovery.LIBRARY_VARIABLE: str(_library(config)[0]), "NCCL_NET_PLUGIN": "none", "NCCL_NET": _SOCKET}


def _environment_other(config: Config) -> dict[str, str]:
    return _with(_other(config), config)


def _open_other(config: Config, place: Place) -> EmulatedTransport:
    """With its name, so that NCCL fails instead of falling back to its own network where the plugin does not start."""
    network = net_plugin.network_name(_other(config))
    os.environ["NCCL_NET"] = network
    return EmulatedTransport("nccl+other", network, config, place)


def _describe(config: Config, network: str) -> str:
    return f"NCCL {_opened(config)[0].version_text} with {network}"


BAGUA = Kind(
    "nccl+bagua",
    lambda config: _describe(config, f"{NETWORK_NAME} {own_version()}"),
    lambda config, place: EmulatedTransport("nccl+bagua", NETWORK_NAME, config, place),
    _environment_bagua,
)
SOCKET = Kind(
    "nccl",
    lambda config: _describe(config, "its own Socket network"),
    lambda config, place: EmulatedTransport("nccl", _SOCKET, config, place),
    _environment_socket,
)
OTHER = Kind(
    "nccl+other",
    lambda config: _describe(config, f"{net_plugin.network_name(_other(config))} of {_other(config).name}"),
    _open_other,
    _environment_other,
    on_request=True,
)
