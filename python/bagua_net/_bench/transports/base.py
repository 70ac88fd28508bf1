# SPDX-License-Identifier: MIT
"""What a network must offer to be measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from ..._errors import BaguaNetError
from ..workload.config import Config

Call = Callable[[], None]


class Unavailable(BaguaNetError):
    """This network cannot be measured here, or not with this operation."""


class NetworkFailed(BaguaNetError):
    """A collective failed."""


@dataclass(frozen=True)
class Job:
    """One call: ``count`` elements as the operation counts them, in buffers at fixed addresses.

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


def _no_choice() -> str:
    return ""


def _raise(error: BaguaNetError) -> NoReturn:
    raise error


@dataclass(frozen=True)
class Bound:
    """A job that can be repeated. Each of its functions raises where the network fails."""

    call: Call
    finish: Call = _nothing
    """Waits for calls that only start the work."""
    push: Call = _nothing
    """Copies the job's buffers to the memory that the network uses."""
    pull: Call = _nothing
    """Copies the result back into the job's buffers."""
    tolerance: float = 0
    """How far an element of the result may be from the exact one."""
    chosen: Callable[[], str] = _no_choice
    """What the network chose for the calls since the binding, such as an algorithm; "": it does not say."""


class Transport(Protocol):
    """One rank's end of a network. Usable once :meth:`connect` has returned. For one thread."""

    row: bytes
    """The bytes that the other ranks need to connect."""
    evidence: list[str]
    """The network's own lines about itself, once it is connected."""

    def connect(self, rows: list[bytes]) -> None:
        """Connects to all ranks; ``rows`` are theirs, in rank order. All ranks call it at the same time."""

    def bind(self, job: Job) -> Bound:
        """Prepares a job."""

    def barrier(self) -> None:
        """Returns once all ranks have called this."""

    def close(self) -> None:
        """Releases everything. Called once, on every rank."""


@dataclass(frozen=True)
class Place:
    """Where a rank is."""

    rank: int
    host: str
    """This host's address, as the other ranks can reach it."""
    give_up: Callable[[BaguaNetError], NoReturn] = _raise
    """Ends this process because of that error, from any thread: for waits that nothing can interrupt."""


@dataclass(frozen=True)
class Kind:
    """A network that may or may not be available."""

    name: str
    describe: Callable[[Config], str]
    """Its product and version. Raises Unavailable, with the reason, where it cannot do what the config asks."""
    open: Callable[[Config, Place], Transport]
    environment: Callable[[Config], dict[str, str]] | None = None
    """Not None: it is measured in separate processes, which get these variables in addition."""
    on_request: bool = False
    """Measured only when requested by name."""
