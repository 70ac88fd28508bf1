# SPDX-License-Identifier: MIT
"""Samples as bytes: what comes back is what went in, and no bytes do more than fail."""

from __future__ import annotations

import collections
import contextlib
import math
import pickle
from typing import Any

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

import hypothesis.extra.numpy as stnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagua_net.data import CacheUnusable, SampleUnsupported
from bagua_net.data._samples import decode, encode

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64),
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    """Any bits, booleans apart."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), generator=generator, dtype=torch.uint8)
    return (data.view(dtype) if count else torch.empty(0, dtype=dtype)).reshape(shape)


TENSORS = st.builds(tensor_of, st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 2**31))
ARRAYS = stnp.arrays(
    st.one_of(
        stnp.boolean_dtypes(),
        stnp.integer_dtypes(endianness="?"),
        stnp.unsigned_integer_dtypes(endianness="?"),
        stnp.floating_dtypes(endianness="?"),
        stnp.complex_number_dtypes(endianness="?"),
        stnp.datetime64_dtypes(endianness="?"),
        stnp.unicode_string_dtypes(endianness="?"),
        stnp.byte_string_dtypes(),
    ),
    stnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary())
SAMPLES = st.recursive(
    st.one_of(SCALARS, TENSORS, ARRAYS, ARRAYS.filter(lambda array: array.size).map(lambda array: array.flat[0])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.binary())), inner, max_size=4),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """To the last bit, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and _bits(one) == _bits(other)
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    return bool(one == other or (one != one and other != other))


def _bits(tensor: torch.Tensor) -> list[int]:
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).tolist() if plain.numel() else []


@given(SAMPLES)
def test_a_sample_comes_back_as_it_was(sample: Any) -> None:
    assert same(decode(encode(sample)), sample)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(10)[::3],
        torch.ones(1).expand(3, 4),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.zeros(0, 3),
        torch.tensor(7),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tuple(tensor.stride())}",
)
def test_a_tensor_of_any_layout_comes_back_contiguous(tensor: torch.Tensor) -> None:
    back = decode(encode(tensor))
    assert same(back, tensor.contiguous())
    assert back.is_contiguous()


def test_what_comes_back_has_memory_of_its_own() -> None:
    data = encode({"tensor": torch.ones(3), "array": np.ones(3)})
    first = decode(data)
    first["tensor"].zero_()
    first["array"][:] = 0
    assert same(decode(data), {"tensor": torch.ones(3), "array": np.ones(3)})


class Own:
    pass


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Own(), "test_samples.Own: .* encode= and decode="),
        ({"a": [Own()]}, "test_samples.Own"),
        ({1, 2}, "builtins.set"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (Pair(1, 2), "Pair"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter"),
        (torch.ones(2, requires_grad=True), "detach"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "on meta, not on the CPU"),
        (np.array([Own()]), "array of object"),
        (np.zeros(2, dtype=[("a", "i4")]), "array of"),
        (np.ma.zeros(2), "MaskedArray"),
        pytest.param(10**5000, "too long", id="long-number"),
    ],
)
def test_other_types_are_refused_with_what_to_do(sample: Any, words: str) -> None:
    with pytest.raises(SampleUnsupported, match=words):
        encode(sample)


def test_a_sample_that_contains_itself_is_refused() -> None:
    sample: list[Any] = []
    sample.append(sample)
    with pytest.raises(SampleUnsupported, match="contains itself"):
        encode(sample)


# ---- bytes from elsewhere ----


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def described(text: str, rest: bytes = b"") -> bytes:
    return len(text).to_bytes(4, "little") + text.encode() + rest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        pickle.dumps(Bomb()),
        described("{}"),
        described("[]"),
        described('["set", 1]'),
        described('["tensor", "float32", [2]]', b"1234567"),
        described('["tensor", "float32", [2]]', b"123456789"),
        described('["tensor", "float32", [-1]]'),
        described('["tensor", "float32", [true]]', b"1234"),
        described('["tensor", "float32", [4611686018427387904, 4]]'),
        described('["tensor", "float32", [0, 100000000000000000000]]'),
        described('["tensor", "bool", [2]]', b"\0\2"),
        described('["tensor", "qint8", [1]]', b"1"),
        described('["array", "|O", [1]]', b"12345678"),
        described('["array", "O", [1]]', b"12345678"),
        described('["array", "<i4,<i4", [1]]', b"12345678"),
        described('["array", "<f3", [1]]', b"123"),
        described('["array", "|b1", [1]]', b"\2"),
        described('["array", "<U99999999999", [1]]'),
        described('["bytes", -1]'),
        described('["bytes", 1e3]'),
        described('["dict", 1]'),
        described('["dict", ["list"], 1]'),
        described('["complex", 1]'),
        pytest.param(described("[" * 100_000), id="deep"),
    ],
)
def test_bytes_that_are_no_sample_are_an_error(data: bytes) -> None:
    with pytest.raises(CacheUnusable, match="not the bytes of a sample"):
        decode(data)


@given(SAMPLES, st.data())
def test_damaged_bytes_are_an_error_or_another_sample(sample: Any, data: st.DataObject) -> None:
    damaged = bytearray(encode(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CacheUnusable):
        decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
