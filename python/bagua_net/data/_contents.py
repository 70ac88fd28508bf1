# SPDX-License-Identifier: MIT
"""Contents of a value as a short text, equal for equal contents: shown where they are short, and hashed otherwise.

Tensors, arrays and buffers of more than 256 MiB are sampled: hashing takes about a second for each GB, and they may be
files that are mapped into memory.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Iterable, Set
from pathlib import PurePath
from types import ModuleType
from typing import Any

import torch

from ._errors import SampleUnsupported
from ._samples import encode

DIGEST_BYTES = 16
#: Bytes: contents of up to so many are shown.
_SHOWN = 80
#: Of more bytes a megabyte is hashed: blocks at equal distances, the first and the last among them.
_HASHED = 256 * 2**20
_BLOCKS = 1024
_BLOCK_BYTES = 1024
_SCALARS = (type(None), bool, float)
CONTAINERS = (list, tuple, dict)
_NAMES = (PurePath, enum.Enum, torch.dtype, torch.device)


def contents(value: Any) -> str | None:
    """None: it has parts, or none that can be read."""
    kind = type(value)
    if kind in _SCALARS or (kind is str and len(value) <= _SHOWN) or (kind is int and abs(value) <= sys.maxsize):
        return repr(value)  # as below, but in a tenth of the time
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, _NAMES):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    numpy = sys.modules.get("numpy")  # loaded, if this is its
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_array(numpy, value)
    return _of_container(value) if kind in CONTAINERS or isinstance(value, Set) else _of_scalar(value)


def bytes_read(value: Any) -> int:
    """How many of tensors, arrays and buffers contents() would read."""
    if type(value) in (*_SCALARS, int, str):
        return 0
    try:
        size = _bytes_in(value) or memoryview(value).nbytes
    except (TypeError, ValueError, BufferError, RecursionError):
        return 0
    return size if size <= _HASHED else 0 if type(value) in CONTAINERS else _BLOCKS * _BLOCK_BYTES


def described(value: Any, data: Iterable[Any], *properties: Any) -> str:
    """The type, what it has beside its bytes, and their hash."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for block in data:
        digest.update(block)
    return " ".join([type(value).__name__, *map(str, properties), digest.hexdigest()])


def _of_scalar(value: Any) -> str | None:
    try:
        return _shown(value, encode(value)) if _bytes_in(value) <= _HASHED else _of_buffer(value)
    except SampleUnsupported:
        return _of_buffer(value)


def _of_container(value: Any) -> str | None:
    try:
        if isinstance(value, Set):
            return described(value, sorted(map(encode, map(_plain, value))))
        if _bytes_in(value) > _HASHED:
            return None
        try:
            return _shown(value, encode(value))
        except SampleUnsupported:
            return _shown(value, encode(_plain(value)))
    except (SampleUnsupported, RecursionError):  # it contains itself
        return None


def _plain(value: Any) -> Any:
    """With bytes in the place of paths and other names."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_plain, value))
    if kind is dict:
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return repr(value).encode() if isinstance(value, _NAMES) else value


def _shown(value: Any, data: bytes) -> str:
    text = repr(value) if len(data) <= _SHOWN else ""
    return text if text and "\n" not in text else described(value, [data])


def _bytes_in(value: Any) -> int:
    """Of the tensors, arrays and bytes in a value that could be encoded, which would copy them."""
    kind = type(value)
    if kind is list or kind is tuple:
        return sum(map(_bytes_in, value))
    if kind is dict:
        return sum(map(_bytes_in, value.values()))
    if kind is bytes:
        return len(value)
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    numpy = sys.modules.get("numpy")  # loaded, if this is its
    return int(value.nbytes) if numpy is not None and isinstance(value, numpy.ndarray) else 0


# ---- tensors, arrays, buffers ----


def _of_tensor(tensor: torch.Tensor) -> str | None:
    """None: it is sparse or quantized, or has no elements here."""
    try:
        plain = tensor.detach().as_subclass(torch.Tensor)
        if plain.layout is torch.strided and plain.numel() * plain.element_size() > _HASHED:
            starts, length = _blocks(plain.numel(), plain.element_size())
            places = torch.tensor(starts, device=plain.device)[:, None] + torch.arange(length, device=plain.device)
            sample = plain[torch.unravel_index(places.flatten(), plain.shape)]
            return described(tensor, [encode(sample.cpu())], plain.dtype, tuple(plain.shape), "sampled")
        plain = plain.cpu()
        return _shown(plain, encode(plain))
    except (TypeError, RuntimeError):
        return None


def _of_array(numpy: Any, value: Any) -> str | None:
    """None: its elements are objects."""
    array = numpy.asarray(value)  # also of a file that is mapped into memory
    if array.dtype.hasobject:
        return None
    if array.nbytes > _HASHED:
        starts, length = _blocks(array.size, array.itemsize)
        places = numpy.array(starts)[:, None] + numpy.arange(length)
        sample = array[numpy.unravel_index(places.ravel(), array.shape)]
        return described(value, [sample.tobytes()], array.dtype, array.shape, "sampled")
    try:
        return _shown(array, encode(array))
    except SampleUnsupported:  # of structures
        return described(value, [array.tobytes()], array.dtype, array.shape)


def _of_buffer(value: Any) -> str | None:
    """None: it is none, or has gaps."""
    try:
        with memoryview(value) as view:
            if not view.c_contiguous:
                return None
            if view.nbytes == 0:
                return described(value, [], view.format, view.shape)
            with view.cast("B") as data:
                if len(data) <= _HASHED:
                    return described(value, [data], view.format, view.shape)
                starts, length = _blocks(len(data), 1)
                blocks = (bytes(data[start : start + length]) for start in starts)
                return described(value, blocks, view.format, view.shape, "sampled")
    except (TypeError, ValueError, BufferError):
        return None


def _blocks(elements: int, element_bytes: int) -> tuple[list[int], int]:
    """Where blocks of elements begin, and how many each has."""
    length = min(elements, max(1, _BLOCK_BYTES // element_bytes))
    return [number * (elements - length) // (_BLOCKS - 1) for number in range(_BLOCKS)], length
