# SPDX-License-Identifier: MIT
"""What tests of the algorithms put inside them: costs and times that no real network has, failures, moments that they
must hit. No public interface takes these, so a name inside that changes changes here. Algorithms with defects:
controls.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bagua_net.algorithms import AlgorithmHandle, _async, _attach, _auto, _bytegrad, _probe, _sharded

# ---- auto ----

#: Steps after a change that auto does not time.
IGNORED_STEPS = _auto._IGNORED_STEPS


@contextlib.contextmanager
def costs(*, latency_s: float = 1e-4, bytes_per_s: float, codec_s: float) -> Iterator[None]:
    """An attach of auto finds that a message takes so long, and an element in the codec."""
    found = _probe.Costs(latency_s, bytes_per_s, codec_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_auto, "probe", lambda *_: found)
        yield


@contextlib.contextmanager
def seconds_of_an_element(seconds: float) -> Iterator[None]:
    """An attach of auto finds that an all-reduce takes so long for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_probe, "_all_reduce_s", lambda *arguments: seconds * arguments[-1])
        yield


@contextlib.contextmanager
def step_times(comm: AlgorithmHandle, seconds: Callable[[str], float]) -> Iterator[None]:
    """auto finds that a step with a candidate takes so long."""
    impl: Any = comm._impl
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds(impl._now)
        return now

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        yield


# ---- failures ----


def _no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError("no such luck")


@contextlib.contextmanager
def cannot_begin(what: str) -> Iterator[None]:
    """An attach fails on this rank, after all ranks have agreed on it."""
    place: Any
    place, name = {
        "its runner": (_attach, "runner_for"),
        "async": (_async, "_Turns"),
        "bytegrad": (_bytegrad.ByteGradImpl, "__init__"),
        "bytegrad of shards": (_sharded.ShardedByteGrad, "__init__"),
    }[what]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, _no_memory)
        yield


@contextlib.contextmanager
def rounds_fail(comm: AlgorithmHandle, where: str) -> Iterator[None]:
    """The rounds of async on this rank: as they copy the weights, or add the change."""

    def fails(*_: Any) -> Any:
        raise ArithmeticError("of a copy")

    name = {"copy": "copied", "add": "add"}[where]
    setattr(comm._impl, name, fails)
    try:
        yield
    finally:
        delattr(comm._impl, name)


def cut(comm: AlgorithmHandle, elements: int, *, fails_after: int | None = None) -> None:
    """As many elements travel in a message of low_precision_decentralized. After so many messages, a rank is gone."""
    impl: Any = comm._impl
    impl._chunk = elements
    end, left = impl._end, fails_after

    def end_and_fail(chunk: Any) -> None:
        nonlocal left
        end(chunk)
        if left is not None:
            if left == 0:
                raise RuntimeError("a rank is gone")
            left -= 1

    impl._end = end_and_fail


# ---- moments ----


def hold_changes(comm: AlgorithmHandle, which: Callable[[Any], bool], held: Callable[[], None]) -> None:
    """A round of async that has found such a change waits, until the rounds are to end, before it adds that."""
    impl: Any = comm._impl
    change = impl.change

    def waits(*arguments: Any) -> Any:
        changes = change(*arguments)
        if which(changes):
            stops = impl._rounds._stops
            held()
            stops.put(stops.get())
        return changes

    impl.change = waits
