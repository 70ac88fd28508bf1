# SPDX-License-Identifier: MIT
"""Processes that serve many tests. They are spawned, so they share nothing with the test but files.

assert processes.run(number_and, 5) == [(0, 5), (1, 5), (2, 5), (3, 5)]

def number_and(here: Here, other: int) -> tuple[int, int]:      # at the top of a test module
    return here.number, other
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from threading import BrokenBarrierError
from types import TracebackType
from typing import Any

import torch

COUNT = 4
_SECONDS = 120

_barrier: Any = None


def _begin(barrier: Any) -> None:
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Here:
    """The process that a function runs in: its argument."""

    number: int

    def meet(self) -> None:
        """Waits until all are here."""
        _barrier.wait(_SECONDS)


def _call(function: Callable[..., Any], number: int, arguments: tuple[Any, ...]) -> Any:
    here = Here(number)
    here.meet()  # so that each runs in a process of its own
    return function(here, *arguments)


class Processes:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._barrier = context.Barrier(COUNT)
        self._pool = ProcessPoolExecutor(COUNT, context, _begin, (self._barrier,))

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The results of all; the first exception of any."""
        futures = [self._pool.submit(_call, function, number, arguments) for number in range(COUNT)]
        errors = [error for future in futures if (error := future.exception(_SECONDS)) is not None]
        if errors:
            self._barrier.reset()
            raise next((error for error in errors if not isinstance(error, BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
