# SPDX-License-Identifier: MIT
"""What a dataset is made of, as text: equal in every process of a job and in its next run, different for another one.

A fingerprint has a line for each part: the length, the type, and the parts of the dataset with those of objects in
them. A part counts by its contents (_contents.py), or by its type and its own parts (_state.py). Functions, classes and
modules count by their names, functions also by their defaults and closures: what functions do does not count. Of what
can have parts but hides them, or lies too deep, the log names the first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from ._contents import CONTAINERS, DIGEST_BYTES, bytes_read, contents, described
from ._state import beside_elements, state_of

#: Levels of objects in objects, and objects that are looked into: so many take half a minute.
_LEVELS, _OBJECTS = 40, 1_000_000
#: Bytes of tensors, arrays and buffers that are read. A table on a disk may be a hundred thousand buffers.
_BYTES = 4 * 2**30
#: Items of a container, and lines of all, that have lines of their own: others are hashed together.
_ITEMS, _LINES = 1000, 10_000

_log = logging.getLogger("bagua_net.data")


def fingerprint(dataset: Any, **more: Any) -> str:
    """Of a dataset, and of what else its cached samples depend on.

    Raises:
        ValueError: nothing of the dataset can be read but its length and types.
    """
    unread = _Unread()
    own, others = _Walk(unread), _Walk(unread)
    lines = itertools.chain(
        others.lines("length", len(dataset), _LEVELS),
        own.lines("dataset", dataset, _LEVELS),
        *(others.lines(name, part, _LEVELS) for name, part in more.items()),
    )
    text = "\n".join([*itertools.islice(lines, _LINES), *_together("what follows", lines)])
    if unread.count and not own.contents:
        raise ValueError(
            f"{unread.first} cannot be looked into, and nothing else tells this dataset from others of its length: "
            "give CachedDataset a name for it, fingerprint="
        )
    if unread.count:
        _log.warning(
            "a dataset's fingerprint leaves out what cannot be looked into, %s%s: where datasets differ in that alone, "
            "one gets the samples of another; give CachedDataset fingerprint=",
            *(unread.first, f" and {unread.count - 1} more" if unread.count > 1 else ""),
        )
    return text


def difference(found: str, own: str) -> str:
    """Where the fingerprint of a cache and the one of this dataset differ, and what to do."""
    there, here = _by_name(found), _by_name(own)
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    name = names[0] if names else "fingerprint"
    return (
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here; give another path or delete "
        "the cache, or give the same fingerprint= where they are the same to you"
    )


def _by_name(text: str) -> dict[str, str]:
    """The value of each line; one of the caller's own words is the value of "fingerprint"."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    return {name if equals else "fingerprint": value if equals else repr(name) for name, equals, value in pairs}


class _Unread:
    """Parts that do not count: the first one with the reason, and how many there are."""

    def __init__(self) -> None:
        self.first = ""
        self.count = 0

    def add(self, name: str, reason: str) -> None:
        self.first = self.first or f"{name} ({reason})"
        self.count += 1


class _Walk:
    """Through the parts of values."""

    def __init__(self, unread: _Unread) -> None:
        self.contents = 0
        """How many parts count by their contents."""
        self._unread = unread
        self._bytes = 0
        self._seen: dict[int, Any] = {}  # values too, so that no other one gets the number of one that is gone

    def lines(self, name: str, value: Any, levels: int) -> Iterator[str]:
        size = bytes_read(value)
        has_room = self._bytes + size <= _BYTES
        text = self._contents(name, value, levels) if has_room else None
        yield f"{name} = {text or _name_of(value)}"
        if text is not None:
            self.contents += 1
            self._bytes += size
            yield from self._of_parts(name, beside_elements(value), levels - 1)
        elif levels <= 0:
            self._unread.add(name, "too deep")
        elif len(self._seen) >= _OBJECTS or not (has_room or type(value) in CONTAINERS):
            self._unread.add(name, "behind too many others")
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            parts, are_all = _parts(value)
            if not are_all:
                self._unread.add(name, f"a {_name_of(value)}")
            yield from self._of_parts(name, itertools.chain(parts, beside_elements(value)), levels - 1)

    def _contents(self, name: str, value: Any, levels: int) -> str | None:
        text = contents(value)
        if text is not None or not isinstance(value, Set) or levels <= 0:
            return text
        # In an order of the contents: that of a set is another one in each process.
        items = ("\n".join(_Walk(self._unread).lines(f"{name}[]", item, levels - 1)) for item in value)
        return described(value, (f"{item}\n".encode() for item in sorted(items)), len(value))

    def _of_parts(self, name: str, parts: Iterable[tuple[str, Any]], levels: int) -> Iterator[str]:
        remaining = iter(parts)
        for part, value in itertools.islice(remaining, _ITEMS):
            yield from self.lines(f"{name}{part}", value, levels)
        for first in remaining:
            rest = itertools.chain([first], remaining)
            lines = (line for part, value in rest for line in self.lines(f"{name}{part}", value, levels))
            yield from _together(f"{name}[{_ITEMS}:]", lines)


def _together(name: str, lines: Iterable[str]) -> Iterator[str]:
    """One line for all of these, if there are any."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    count = 0
    for line in lines:
        digest.update(f"{line}\n".encode())
        count += 1
    if count:
        yield f"{name} = {count} lines {digest.hexdigest()}"


def _name_of(value: Any) -> str:
    """Of a function or class; of anything else its type's."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', None)}.{named.__qualname__}"


def _parts(value: Any) -> tuple[Iterable[tuple[str, Any]], bool]:
    """Names and values, and whether these are all."""
    if isinstance(value, (dict, MappingProxyType)):
        return _of_mapping(value), True
    if isinstance(value, (list, tuple)):
        return ((f"[{index}]", inner) for index, inner in enumerate(value)), True
    if isinstance(value, functools.partial):
        return ((".func", value.func), (".args", value.args), (".keywords", value.keywords)), True
    if hasattr(value, "__qualname__"):
        return _beside_code(value), True
    return state_of(value)


def _beside_code(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function was made with, or a method's object. Of a class nothing."""
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        yield ".__self__", owner
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return
    defaults = {".__defaults__": function.__defaults__, ".__kwdefaults__": function.__kwdefaults__}
    yield from ((name, each) for name, each in defaults.items() if each)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # of a variable that is not assigned yet
            yield f".{name}", cell.cell_contents


def _of_mapping(value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for number, (key, inner) in enumerate(value.items()):
        text = contents(key)
        if text is None:
            yield f".keys()[{number}]", key
        yield f"[{text or _name_of(key)}]", inner
