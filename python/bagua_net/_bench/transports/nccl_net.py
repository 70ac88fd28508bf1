# SPDX-License-Identifier: MIT
"""Networks with NCCL's plugin interface, driven by the library's collectives: ours, and NCCL's own sockets.

Over ours the library also sends codes instead of elements: its compressed allreduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..._native import library
from ..._nccl import discovery, socket_network
from ..workload.config import Config
from ..workload.elements import REDUCTIONS, TYPES, tolerance
from .base import Bound, Job, Kind, NetworkFailed, Place, Unavailable

#: The version of our own table that is measured: the newest.
_API = 12
#: The oldest version that the collectives can drive.
_OLDEST_API = 8
_ALGO_AUTO = 0


@dataclass(frozen=True)
class Table:
    """An ncclNet table in this process."""

    address: Any
    """A C pointer."""
    api: int


class NetTransport:
    """The library's collectives over one table."""

    def __init__(self, name: str, table: Table, config: Config, place: Place) -> None:
        self._name = name
        self._lib = library.load_host()
        self._ffi = library.ffi
        self._rank = place.rank
        self._nranks = config.nranks
        self._timeout = config.timeout
        self._coll = self._ffi.NULL
        out = self._ffi.new("bnet_coll_t **")
        self._check(self._lib.bnet_coll_create(out, table.address, table.api, config.dev, place.rank, config.nranks))
        self._coll = out[0]
        row = self._ffi.new("char[]", self._lib.bnet_coll_handle_size(self._coll))
        self._check(self._lib.bnet_coll_listen(self._coll, row))
        self.row = bytes(self._ffi.buffer(row))
        self.evidence: list[str] = []

    def connect(self, rows: list[bytes]) -> None:
        joined = self._ffi.from_buffer(b"".join(rows))
        self._check(self._lib.bnet_coll_connect(self._coll, joined, self._timeout))
        self._lib.bnet_coll_set_timeout(self._coll, self._timeout)

    def _check(self, rc: int) -> None:
        if rc != 0:
            reason = library.text(self._lib.bnet_coll_error(self._coll)) or f"error {-rc}"
            raise NetworkFailed(f"{self._name}: {reason}")

    def bind(self, job: Job) -> Bound:
        arguments = self._arguments(job)
        function = getattr(self._lib, f"bnet_coll_{job.op}")
        coll, check = self._coll, self._check

        def call() -> None:
            rc = function(coll, *arguments)
            if rc != 0:
                check(rc)

        return Bound(call)

    def _arguments(self, job: Job) -> tuple[Any, ...]:
        """The arguments after the group; bagua_net_host.h has their order."""
        send, receive = self._ffi.from_buffer(job.send), self._ffi.from_buffer(job.receive)
        dtype, redop = TYPES[job.dtype].code, REDUCTIONS[job.redop]
        following, preceding = (self._rank + 1) % self._nranks, (self._rank - 1) % self._nranks
        forms: dict[str, tuple[Any, ...]] = {
            "allreduce": (send, receive, job.count, dtype, redop, _ALGO_AUTO),
            "reduce_scatter": (send, receive, job.count, dtype, redop),
            "all_gather": (send, receive, job.count, dtype),
            "broadcast": (receive, job.count, dtype, 0),
            "all_to_all": (send, receive, job.count, dtype),
            "sendrecv": (send, job.count, following, receive, job.count, preceding, dtype),
        }
        return forms[job.op]

    def barrier(self) -> None:
        self._check(self._lib.bnet_coll_barrier(self._coll))

    def close(self) -> None:
        self._lib.bnet_coll_destroy(self._coll)
        self._coll = self._ffi.NULL


@dataclass(frozen=True)
class Codec:
    """A codec of float32."""

    code: int
    """BNET_CODEC_… of bagua_net_host.h."""
    bits: int


class CompressedTransport(NetTransport):
    """The library's compressed allreduce over one table."""

    def __init__(self, name: str, table: Table, config: Config, place: Place, codec: Codec) -> None:
        super().__init__(name, table, config, place)
        self._codec = codec
        self._block = config.block

    def bind(self, job: Job) -> Bound:
        function, coll, check = self._lib.bnet_coll_allreduce_q, self._coll, self._check
        send, receive = self._ffi.from_buffer(job.send), self._ffi.from_buffer(job.receive)
        redop, code, block = REDUCTIONS[job.redop], self._codec.code, self._block
        no_residual = self._ffi.NULL

        def call() -> None:
            rc = function(coll, send, receive, job.count, redop, code, block, no_residual)
            if rc != 0:
                check(rc)

        most = tolerance(TYPES[job.dtype], job.redop, self._nranks, 2**self._codec.bits - 1)
        return Bound(call, tolerance=most)


# ---- ours ----


def _bagua_table() -> Table:
    return Table(library.load().bnet_net_table(_API), _API)


def _describe_bagua(config: Config) -> str:
    return f"BaguaNet {library.text(library.load().bnet_version())}"


# ---- NCCL's own ----


def _find_socket() -> socket_network.SocketTable:
    """The first NCCL found whose table the collectives can drive."""
    reasons = []
    for path in discovery.libraries():
        try:
            table = socket_network.inspect(path)
        except socket_network.NcclLibraryUnusable as error:
            reasons.append(str(error))
            continue
        if table.api >= _OLDEST_API:
            return table
        reasons.append(f"{path} is NCCL {table.nccl_version}, and 2.20 is the oldest that can be compared")
    raise Unavailable(reasons[0])


def _socket_table() -> Table:
    found = _find_socket()
    return Table(library.ffi.cast("void *", socket_network.load(found)), found.api)


def socket_version() -> str:
    """The version of the NCCL whose Socket network is measured, such as "2.30.7".

    Raises:
        NcclNotFound, Unavailable: there is no NCCL, or none that can be measured.
    """
    return _find_socket().nccl_version


def _describe_socket(config: Config) -> str:
    library.load_host()  # the collectives are ours
    _socket_table()  # a system may forbid what it needs
    return f"NCCL {socket_version()}'s own Socket network"


def _opener(name: str, table: Callable[[], Table]) -> Callable[[Config, Place], NetTransport]:
    return lambda config, place: NetTransport(name, table(), config, place)


def _compressed(name: str, codec: Codec) -> Kind:
    def describe(config: Config) -> str:
        if config.op != "allreduce" or config.dtype != "float32" or config.redop not in ("sum", "avg"):
            raise Unavailable("only an allreduce of float32, sum or avg, can be compressed")
        return f"{_describe_bagua(config)}, {codec.bits} bits for each element, a range for each {config.block} of them"

    return Kind(
        name,
        describe,
        lambda config, place: CompressedTransport(name, _bagua_table(), config, place, codec),
        on_request=True,
    )


#: By the names of --codec.
CODECS = {"u8": Codec(1, 8), "u4": Codec(2, 4)}

BAGUA = Kind("bagua", _describe_bagua, _opener("bagua", _bagua_table))
NCCL_SOCKET = Kind("nccl-socket", _describe_socket, _opener("nccl-socket", _socket_table))
COMPRESSED = tuple(_compressed(f"bagua+{name}", codec) for name, codec in CODECS.items())
