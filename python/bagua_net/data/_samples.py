# SPDX-License-Identifier: MIT
"""Samples as bytes: tensors, numpy arrays, numbers, strings, bytes, None, and dicts, lists and tuples of these.

Reading runs no code from the bytes, as unpickling would: they hold a description in JSON, and the elements of its
tensors and arrays. JSON of the standard library and not safetensors or msgpack: the first knows tensors only, and so
needs a description beside them in any case, the second neither tensors nor tuples.

    {length of the description: uint32, little-endian} {description} {elements, bytes and characters, one after another}

A description is a number, a string, null, true or false as it is, or a list that begins with what it is:

    ["list", item, …]  ["tuple", item, …]  ["dict", key, value, …]
    ["tensor", dtype, shape]  ["array", dtype, shape]  ["scalar", dtype]     the last two are numpy's
    ["bytes", length]  ["complex", real, imaginary]
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ._errors import CacheUnusable, SampleUnsupported

_LENGTH_BYTES = 4
#: Types that torch can make of plain bytes.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
        *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: Kinds of numpy's types whose elements are plain bytes: all but objects and structures.
_ARRAY_KINDS = "biufcSUMm"
_ARRAY_DTYPE = re.compile(rf"[<>|=][{_ARRAY_KINDS}]\d+(\[\d*\w+\])?")
_AS_THEY_ARE = (type(None), bool, int, float, str)


# ---- to bytes ----


def encode(sample: Any) -> bytes:
    """
    Raises:
        SampleUnsupported: a part of the sample has another type. Subclasses are other types: they would come back as
            their base.
    """
    parts: list[bytes] = []
    try:
        description = json.dumps(_described(sample, parts), separators=(",", ":")).encode()
    except RecursionError:
        raise SampleUnsupported("the sample contains itself, or is nested too deeply to be cached") from None
    except ValueError as error:
        raise SampleUnsupported(f"a number in the sample is too long to be cached: {error}") from None
    return b"".join([len(description).to_bytes(_LENGTH_BYTES, "little"), description, *parts])


def _described(value: Any, parts: list[bytes]) -> Any:
    """The description; elements are added to parts."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is torch.Tensor:
        return _of_tensor(value, parts)
    if kind is bytes:
        parts.append(value)
        return ["bytes", len(value)]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is list or kind is tuple:
        return [kind.__name__, *(_described(item, parts) for item in value)]
    if kind is dict:
        return ["dict", *(_described(item, parts) for pair in value.items() for item in pair)]
    numpy = sys.modules.get("numpy")  # loaded, if this is its
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return _of_array(numpy, value, parts)
    raise _unsupported(f"a {kind.__module__}.{kind.__qualname__}")


def _of_tensor(tensor: torch.Tensor, parts: list[bytes]) -> Any:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in _NAMES:
        raise _unsupported(f"a tensor of {tensor.dtype} in the layout {tensor.layout}")
    if tensor.device.type != "cpu":
        raise _unsupported(f"a tensor on {tensor.device}, not on the CPU")
    if tensor.requires_grad:
        raise _unsupported("a tensor that requires a gradient (detach it)")
    parts.append(_elements(tensor))
    return ["tensor", _NAMES[tensor.dtype], list(tensor.shape)]


def _elements(tensor: torch.Tensor) -> bytes:
    """In the order of their indices. By address: without numpy, which torch does not require, and in one copy."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes((ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()))


def _of_array(numpy: Any, value: Any, parts: list[bytes]) -> Any:
    if value.dtype.kind not in _ARRAY_KINDS:
        raise _unsupported(f"a numpy array of {value.dtype}")
    array = numpy.asarray(value)  # an empty string has no bytes by its type, and four in its memory
    parts.append(array.tobytes())
    dtype = array.dtype.str
    return ["scalar", dtype] if isinstance(value, numpy.generic) else ["array", dtype, list(array.shape)]


def _unsupported(what: str) -> SampleUnsupported:
    return SampleUnsupported(
        f"a cache does not store {what}: it stores tensors, numpy arrays, numbers, strings, bytes, None, and dicts, "
        "lists and tuples of these; give encode= and decode=, functions that turn a sample into these and back"
    )


# ---- and back ----


class _Reader:
    """The elements, which the description takes one after another."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = memoryview(data)
        self._position = position

    def take(self, length: int) -> memoryview:
        if not 0 <= length <= len(self._data) - self._position:
            raise ValueError(f"{length} bytes wanted, {len(self._data) - self._position} left")
        self._position += length
        return self._data[self._position - length : self._position]

    def end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes left over")


def decode(data: bytes) -> Any:
    """The sample, in memory of its own.

    Raises:
        CacheUnusable: these are not the bytes of a sample.
    """
    try:
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        reader = _Reader(data, start)
        sample = _value(json.loads(data[_LENGTH_BYTES:start]), reader)
        reader.end()
        return sample
    # What the parts raise for nonsense: json, dicts (keys), torch and numpy (shapes and types), recursion.
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError, MemoryError) as error:
        raise CacheUnusable(f"these are not the bytes of a sample: {error}") from None


def _value(description: Any, reader: _Reader) -> Any:
    if type(description) is not list:
        if type(description) not in _AS_THEY_ARE:
            raise ValueError(f"a {type(description).__name__} is no description")
        return description
    name, *rest = description
    return _READERS[name](rest, reader)


def _items(rest: list[Any], reader: _Reader) -> Iterator[Any]:
    return (_value(each, reader) for each in rest)


def _dict(rest: list[Any], reader: _Reader) -> dict[Any, Any]:
    items = list(_items(rest, reader))
    return dict(zip(items[::2], items[1::2], strict=True))


def _tensor(rest: list[Any], reader: _Reader) -> torch.Tensor:
    name, shape = rest
    dtype = _DTYPES[name]
    data = bytearray(reader.take(_count(shape) * dtype.itemsize))
    if dtype is torch.bool:
        _check_booleans(data)
    plain = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return plain.reshape(shape)


def _array(rest: list[Any], reader: _Reader) -> Any:
    name, shape = rest
    if not _ARRAY_DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is no type of plain elements")
    numpy = importlib.import_module("numpy")
    dtype = numpy.dtype(name)
    data = bytearray(reader.take(_count(shape) * dtype.itemsize))
    if dtype.kind == "b":
        _check_booleans(data)
    return numpy.ndarray(shape, dtype, data) if data else numpy.empty(shape, dtype)


def _scalar(rest: list[Any], reader: _Reader) -> Any:
    (name,) = rest
    return _array([name, []], reader)[()]


def _bytes(rest: list[Any], reader: _Reader) -> bytes:
    (length,) = rest
    return bytes(reader.take(length))


def _complex(rest: list[Any], reader: _Reader) -> complex:
    real, imaginary = rest
    return complex(real, imaginary)


def _check_booleans(data: bytearray) -> None:
    """Others than 0 and 1 are undefined behaviour in C++."""
    if data.strip(b"\0\1"):
        raise ValueError("a boolean is neither 0 nor 1")


def _count(shape: Any) -> int:
    """The number of elements."""
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape")
    return math.prod(shape)


_READERS: dict[str, Callable[[list[Any], _Reader], Any]] = {
    "list": lambda rest, reader: list(_items(rest, reader)),
    "tuple": lambda rest, reader: tuple(_items(rest, reader)),
    "dict": _dict,
    "tensor": _tensor,
    "array": _array,
    "scalar": _scalar,
    "bytes": _bytes,
    "complex": _complex,
}
