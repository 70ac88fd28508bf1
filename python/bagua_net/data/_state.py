# SPDX-License-Identifier: MIT
"""The parts of an object: its attributes, or what its own ``__reduce__`` gives to pickle.

Nothing is made of them again, and buffers are not copied (protocol 5). ``__getstate__`` is called only where an object
has no attributes: those of datasets may close files, or change the object that is still used.
"""

from __future__ import annotations

import copyreg
import logging
import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_PROTOCOL = 5
#: No data, or leading to all of the program (loggers), or other ones in each process (what is random).
_WITHOUT_PARTS = (logging.Logger, weakref.ref, random.Random, torch.Generator)
_MODULES_WITHOUT_PARTS = ("_thread", "numpy.random")
_REDUCES = ("__reduce_ex__", "__reduce__")
#: Names the functions by which Cython pickles an object: they give the fields of a C structure, addresses among them.
_CYTHON = "__pyx_unpickle"


def state_of(value: Any) -> tuple[list[tuple[str, Any]], bool]:
    """Names and values, and whether these are all."""
    try:
        return _state_of(value)
    except Exception:  # of the object's own code, whose kinds nobody knows
        return [], False


def _state_of(value: Any) -> tuple[list[tuple[str, Any]], bool]:
    kind = type(value)
    if isinstance(value, _WITHOUT_PARTS) or any(map(_is_without_parts, kind.__mro__)):
        return [], True
    attributes = _sorted(_attributes(value))
    if attributes and _has_own(kind, "__getstate__") and not any(_has_own(kind, name) for name in _REDUCES):
        return attributes, True
    try:
        reduce = copyreg.dispatch_table.get(kind)
        reduced = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return [(".name", reduced)], True
        if not reduced[0].__name__.startswith(_CYTHON):
            return list(_of_reduced(value, *reduced)), True
    except Exception:  # of whatever kind: it is not meant to be stored
        pass
    return attributes, False


def beside_elements(value: Any) -> Iterable[tuple[str, Any]]:
    """Attributes of a tensor, array or container of a class of its own: the mask of numpy's arrays, for example."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return ()
    numpy = sys.modules.get("numpy")  # loaded, if this is its
    arrays = () if numpy is None else (numpy.ndarray, numpy.memmap)
    if kind in (torch.Tensor, torch.nn.Parameter, *arrays):
        return ()
    return _sorted(_attributes(value)) if isinstance(value, (torch.Tensor, list, tuple, dict, *arrays)) else ()


def _has_own(kind: type, method: str) -> bool:
    return getattr(kind, method, None) is not getattr(object, method, None)


def _is_without_parts(kind: type) -> bool:
    return kind.__module__.startswith(_MODULES_WITHOUT_PARTS)


def _attributes(value: Any) -> dict[str, Any]:
    slots = {name: getattr(value, name) for name in copyreg._slotnames(type(value)) if hasattr(value, name)}  # type: ignore[attr-defined]
    return {**slots, **getattr(value, "__dict__", {})}


def _sorted(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", attributes[name]) for name in sorted(attributes)]


def _of_reduced(
    value: Any, function: Any, arguments: Any, state: Any = None, items: Any = None, pairs: Any = None, *_: Any
) -> Iterator[tuple[str, Any]]:
    """The parts of what ``__reduce__`` returns, as its documentation describes them."""
    if function.__module__ != copyreg.__name__:  # that only makes an object of the type
        yield ".__reduce__", function
    yield from ((f".args[{index}]", inner) for index, inner in enumerate(arguments) if inner is not type(value))
    yield from _of_state(state)
    yield from ((f"[{index}]", inner) for index, inner in enumerate(items or ()))
    yield from ((f"[{index}]", pair) for index, pair in enumerate(pairs or ()))


def _of_state(state: Any) -> list[tuple[str, Any]]:
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # with attributes in slots
        state = {**(state[0] or {}), **state[1]}
    if isinstance(state, dict) and all(type(name) is str for name in state):
        return _sorted(state)
    return [] if state is None else [(".state", state)]
