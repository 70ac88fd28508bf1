# SPDX-License-Identifier: MIT
"""How far an epoch has been handed out, and where the next iteration begins after a checkpoint was loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Cursor(Iterator[_T]):
    """Hands out items from a position on."""

    def __init__(self, items: Sequence[_T], position: int, epoch: int) -> None:
        self._items = items
        self.position = position
        self.epoch = epoch

    def __next__(self) -> _T:
        if self.position >= len(self._items):
            raise StopIteration
        self.position += 1
        return self._items[self.position - 1]


class Progress(Generic[_T]):
    """Of the iteration that began last.

    A loaded position holds for one iteration, of its epoch. That iteration takes it when it begins, not with its first
    item: torchdata's loader makes one for a finished epoch, drops it and makes another for the next.
    """

    def __init__(self) -> None:
        self._loaded: tuple[int, int] | None = None
        self._cursor: Cursor[_T] | None = None

    def begin(self, epoch: int, items: Sequence[_T]) -> Cursor[_T]:
        loaded, self._loaded = self._loaded, None
        start = loaded[1] if loaded is not None and loaded[0] == epoch else 0
        self._cursor = Cursor(items, start, epoch)
        return self._cursor

    def position(self, epoch: int) -> int:
        """How many items of this epoch were handed out."""
        if self._loaded is not None and self._loaded[0] == epoch:
            return self._loaded[1]
        if self._cursor is not None and self._cursor.epoch == epoch:
            return self._cursor.position
        return 0

    def load(self, epoch: int, position: int) -> None:
        self._loaded = (epoch, position)


def numbers(state: Mapping[str, Any], *names: str) -> list[int]:
    """These entries of a state.

    Raises:
        ValueError: one is missing, or is no number from 0 on.
    """
    for name in names:
        if type(state.get(name)) is not int or state[name] < 0:
            raise ValueError(f"the state has {name}={state.get(name)!r}: it is not one of this sampler's state_dict()")
    return [state[name] for name in names]


def compare(state: Any, own: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: the state is of a sampler that takes other samples, or takes them in another order.
    """
    for name, value in own.items():
        found = state.get(name) if isinstance(state, Mapping) else None
        if found != value:
            raise ValueError(
                f"the state is of a sampler with {name}={found!r}, and this one has {name}={value!r}: a "
                "position within an epoch has no meaning here; begin an epoch with set_epoch() instead"
            )


def next_epoch(named: int, loaded: int, is_over: bool) -> int:
    """Which one comes next, after ``set_epoch`` has named one and the state of another was loaded."""
    return max(named, loaded) if is_over else loaded


def checked(position: int, length: int) -> int:
    """
    Raises:
        ValueError: an epoch of this length has no such position.
    """
    if not 0 <= position <= length:
        raise ValueError(f"the position {position} is not in an epoch of {length}")
    return position
