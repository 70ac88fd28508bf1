# SPDX-License-Identifier: MIT
"""What a dataset is made of, as text: equal in every process of a job and in its next run, different for another one.

A fingerprint has a line for each part: the length, the type, and the attributes with those of objects in them. A part
that a cache can store counts by its contents, a function or class by its name, anything else by its type. What
functions do does not count.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import logging
from collections.abc import Iterator, Mapping, Set
from pathlib import PurePath
from typing import Any

import torch

from ._errors import SampleUnsupported
from ._samples import encode

_DIGEST_BYTES = 16
#: Contents of up to so many bytes are shown, others hashed.
_SHOWN = 80
#: Tensors and arrays of more bytes count by type and shape: hashing takes about a second for each GB.
_HASHED = 256 * 2**20
#: Beyond these nothing is looked at: levels of objects in objects, items of a container, lines.
_LEVELS, _ITEMS, _LINES = 8, 1000, 10_000


def fingerprint(dataset: Any, **more: Any) -> str:
    """Of a dataset, and of what else its cached samples depend on."""
    parts = {"length": len(dataset), "dataset": dataset, **more}
    seen: set[int] = set()
    lines = (line for name, part in parts.items() for line in _lines(name, part, _LEVELS, seen))
    return "\n".join(itertools.islice(lines, _LINES))


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


def _lines(name: str, value: Any, levels: int, seen: set[int]) -> Iterator[str]:
    contents = _contents(value)
    yield f"{name} = {contents or _name_of(value)}"
    if contents or levels == 0 or id(value) in seen:
        return
    seen.add(id(value))
    for part, inner in itertools.islice(_parts(value), _ITEMS):
        yield from _lines(f"{name}{part}", inner, levels - 1, seen)


def _contents(value: Any) -> str | None:
    """Text that is equal for equal contents; None: it has parts, or none that can be known."""
    if isinstance(value, (PurePath, enum.Enum, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().as_subclass(torch.Tensor)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int) and size > _HASHED:
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    try:
        if isinstance(value, Set):
            return _digest(value, b"".join(sorted(map(encode, value))))
        data = encode(value)
    except SampleUnsupported:
        return None
    text = repr(value) if len(data) <= _SHOWN else ""
    return text if text and "\n" not in text else _digest(value, data)


def _digest(value: Any, data: bytes) -> str:
    return f"{type(value).__name__} {hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}"


def _name_of(value: Any) -> str:
    """Of a function or class; of anything else its type's."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif not hasattr(value, "__qualname__") and not isinstance(value, logging.Logger):  # which leads to all loggers
        yield from ((f".{name}", inner) for name, inner in sorted(getattr(value, "__dict__", {}).items()))
