# SPDX-License-Identifier: MIT
"""What a network must offer to be measured, and which ones there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .._errors import BaguaNetError
from .config import Config

Call = Callable[[], None]


class Unavailable(BaguaNetError):
    """This network cannot be measured here, or not with this operation."""


class NetworkFailed(BaguaNetError):
    """A collective did not end well."""


@dataclass(frozen=True)
class Job:
    """One call: ``count`` elements as the operation counts them, in buffers that stay where they are.

    ``send`` and ``receive`` are the same memory where the operation works in place.
    """

    op: str
    dtype: str
    redop: str
    count: int
    send: memoryview
    receive: memoryview


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Bound:
    """A job, ready to be done again and again. All of it raises where the network fails."""

    call: Call
    finish: Call = _nothing
    """Waits for calls that only started the work."""
    push: Call = _nothing
    """Brings what the job's buffers hold to where the network works."""
    pull: Call = _nothing
    """Brings the result back into the job's buffers."""


class Transport(Protocol):
    """One rank's end of a network, in the making until :meth:`connect` returns. For one thread."""

    row: bytes
    """What the other ranks must know to connect."""

    def connect(self, rows: list[bytes]) -> None:
        """Connects to all ranks; ``rows`` are theirs, in rank order. All ranks call it at the same time."""

    def bind(self, job: Job) -> Bound:
        """Prepares a job."""

    def barrier(self) -> None:
        """Returns once all ranks have called this."""

    def close(self) -> None:
        """Gives everything back. Called once, on every rank."""


@dataclass(frozen=True)
class Place:
    """Where a rank is."""

    rank: int
    host: str
    """This host's address, as the other ranks can reach it."""


@dataclass(frozen=True)
class Kind:
    """A network that may be there or not."""

    name: str
    describe: Callable[[Config], str]
    """Its product and version. Raises Unavailable with the reason where it cannot do what is asked."""
    open: Callable[[Config, Place], Transport]
    environment: Callable[[], dict[str, str]] | None = None
    """Not None: it is measured in processes of its own, which have these variables besides."""
    on_request: bool = False
    """Measured only where it is asked for by name."""


def kinds(device: str) -> dict[str, Kind]:
    """The networks for memory of this device, ours first. Those of GPUs need torch, and nothing else beside Python."""
    rows: tuple[Kind, ...]
    if device == "cuda":
        from . import cuda

        rows = (cuda.WITH_PLUGIN, cuda.WITHOUT_PLUGIN)
    else:
        from . import backend, gloo, net

        rows = (net.BAGUA, net.NCCL_SOCKET, gloo.GLOO, backend.TORCH_BAGUA)
    return {row.name: row for row in rows}


def survey(config: Config, names: list[str]) -> dict[str, tuple[bool, str]]:
    """name → (can be used here, its description or the reason why not)."""
    found = {}
    for name in names:
        try:
            found[name] = (True, kinds(config.device)[name].describe(config))
        except BaguaNetError as error:
            found[name] = (False, str(error))
    return found


def use_interface(ifname: str | None, local: bool) -> str:
    """Sets the interface variables of NCCL and gloo for this process and its children.

    Ranks of one machine talk over loopback unless somebody asked for another interface, so that the figures are
    about the software. Returns a phrase that says what was chosen.
    """
    wanted = ifname or os.environ.get("NCCL_SOCKET_IFNAME") or ("lo" if local else "")
    if not wanted:
        return "over the interfaces that each network chooses"
    os.environ["NCCL_SOCKET_IFNAME"] = wanted
    exact = wanted.removeprefix("=")
    if not any(mark in exact for mark in "^,:") and ("GLOO_SOCKET_IFNAME" not in os.environ or ifname):
        os.environ["GLOO_SOCKET_IFNAME"] = exact
    return "over loopback" if exact == "lo" else f"over {wanted}"
