# SPDX-License-Identifier: MIT
"""The ranks of this invocation and their meeting point: local, from torchrun's variables, or by --rendezvous."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..._errors import BaguaNetError
from ..workload.elements import MAX_RANKS
from .process import TOKEN_VARIABLE
from .rendezvous import new_token

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")


class PlacementInvalid(BaguaNetError):
    """The options do not determine this rank's number, or the number of ranks."""


@dataclass(frozen=True)
class Placement:
    nranks: int
    ranks: list[int]
    """The ranks that this invocation starts. Rank 0's invocation serves the rendezvous and prints the table."""
    host: str
    port: int
    """0: any free port, where all ranks are here."""
    token: str
    local: bool
    """All ranks are on this machine."""
    on_host: tuple[int, int]
    """The first one's number among the ranks of this machine, and how many those are."""

    @property
    def text(self) -> str:
        return f"between {self.nranks} ranks" + (" on this machine" if self.local else "")


def _shared_token(host: str, port: int, nranks: int, environment: Mapping[str, str]) -> str:
    """A token that all invocations of a run can compute. It keeps other programs and other runs out; where that is not
    enough, set BAGUA_NET_BENCH_TOKEN to a secret on every host."""
    secret = environment.get(TOKEN_VARIABLE)
    if secret:
        return secret
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return hashlib.sha256(f"{run}|{host}|{port}|{nranks}".encode()).hexdigest()


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise PlacementInvalid(f"--rendezvous is HOST:PORT, for example 10.0.0.1:29600, not {address!r}")
    return host.strip("[]"), int(port)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise PlacementInvalid(f"{name}={environment[name]} is not a number") from None


def _world_size(environment: Mapping[str, str]) -> int:
    nranks = _number(environment, "WORLD_SIZE")
    if not 2 <= nranks <= MAX_RANKS:
        raise PlacementInvalid(
            f"WORLD_SIZE={nranks}: the benchmark takes 2 to {MAX_RANKS} ranks; this environment sets it, and --ranks 2 "
            "measures this host alone"
        )
    return nranks


def _on_host(environment: Mapping[str, str]) -> tuple[int, int]:
    """This rank's number among those of its machine, and how many those are: torchrun's, or the only one."""
    if not all(name in environment for name in _TORCHRUN_LOCAL):
        return 0, 1
    index, ranks = (_number(environment, name) for name in _TORCHRUN_LOCAL)
    if not 0 <= index < ranks:
        raise PlacementInvalid(f"LOCAL_RANK={index} is not one of LOCAL_WORLD_SIZE={ranks}: numbers begin with 0")
    return index, ranks


def _port_beside(master: int) -> int:
    """A port from 10001 to 30000 that every rank can compute. torchrun's own store has MASTER_PORT, and the ports near
    it may be in use as source ports, which the kernel takes from 32768 upwards."""
    return 10001 + master % 20000


def place(
    nranks: int | None, rank: int | None, rendezvous: str | None, environment: Mapping[str, str] | None = None
) -> Placement:
    """Interprets the options and torchrun's variables.

    Under torchrun the ranks meet at MASTER_ADDR, at a port computed from MASTER_PORT; ``--rendezvous`` overrides that.

    Raises:
        PlacementInvalid: an option is missing or wrong.
    """
    environment = os.environ if environment is None else environment
    if rendezvous is not None:
        if rank is None and nranks is None and all(name in environment for name in _TORCHRUN):
            rank, nranks = _number(environment, "RANK"), _world_size(environment)
        if rank is None or nranks is None:
            raise PlacementInvalid("--rendezvous needs --rank and --ranks: which rank this is, and of how many")
        host, port = _split(rendezvous)
        return _remote(nranks, rank, host, port, local=False, environment=environment)
    if rank is not None:
        raise PlacementInvalid("--rank needs --rendezvous HOST:PORT, the same on every host")
    if nranks is None and all(name in environment for name in _TORCHRUN):
        total, own = _world_size(environment), _number(environment, "RANK")
        local = environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]
        master = _number(environment, "MASTER_PORT")
        if not 0 < master < 65536:
            raise PlacementInvalid(f"MASTER_PORT={master} is no port: those are 1 to 65535")
        port = _port_beside(master)
        return _remote(total, own, environment["MASTER_ADDR"], port, local=local, environment=environment)
    count = 2 if nranks is None else nranks
    return Placement(count, list(range(count)), "127.0.0.1", 0, new_token(), local=True, on_host=(0, count))


def _remote(nranks: int, rank: int, host: str, port: int, *, local: bool, environment: Mapping[str, str]) -> Placement:
    if not 0 <= rank < nranks:
        raise PlacementInvalid(f"of {nranks} ranks the numbers are 0 to {nranks - 1}, not {rank}")
    token = _shared_token(host, port, nranks, environment)
    return Placement(nranks, [rank], host, port, token, local, _on_host(environment))
