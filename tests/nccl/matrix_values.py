# SPDX-License-Identifier: MIT
"""The matrix's data: streams of elements whose reductions are exact in every order, so that results can be compared bit
by bit.

A stream repeats after :data:`PERIOD` elements, a prime: data that arrives a slice, a chunk or a page away from its
place is wrong. Elements are raw: unsigned integers as wide as the type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.nccl.emulated import DataType

PERIOD = 8191

#: Elements as unsigned integers of their width, and as numbers.
Raw = NDArray[Any]
Numbers = NDArray[Any]

#: The reductions. "premulsum" multiplies each rank's data by a number of this rank, which the host hands over, or which
#: is in device memory.
SUM, PROD, MIN, MAX, AVG, PREMULSUM, PREMULSUM_DEVICE = REDUCTIONS = (
    "sum",
    "prod",
    "min",
    "max",
    "avg",
    "premulsum",
    "premulsum_device",
)

_MOST = 1 << 20
_FUNCTIONS: dict[str, Any] = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}


@dataclass(frozen=True)
class Type:
    """An element type of NCCL's."""

    name: str
    size: int
    """Bytes."""
    exact: int = 0
    """Floats: all whole numbers up to this one are exact. 0: an integer type."""

    @property
    def code(self) -> DataType:
        return DataType[self.name.upper()]

    @property
    def raw(self) -> np.dtype[Any]:
        return np.dtype(f"u{self.size}")

    @property
    def is_float8(self) -> bool:
        return self.name.startswith("float8")

    def encode(self, values: Numbers) -> Raw:
        """Numbers as raw elements of a float type. ValueError where one is not exact."""
        encoded: Raw = _ENCODERS[self.name](values)
        if not np.array_equal(self.decode(encoded), values):
            raise ValueError(f"{self.name} does not hold all of these numbers exactly")
        return encoded

    def decode(self, raw: Raw) -> Numbers:
        numbers: Numbers = _DECODERS[self.name](raw)
        return numbers


TYPES = {
    made.name: made
    for made in (
        Type("int8", 1),
        Type("uint8", 1),
        Type("int32", 4),
        Type("uint32", 4),
        Type("int64", 8),
        Type("uint64", 8),
        Type("float16", 2, 1 << 11),
        Type("float32", 4, 1 << 24),
        Type("float64", 8, 1 << 53),
        Type("bfloat16", 2, 1 << 8),
        Type("float8e4m3", 1, 1 << 4),
        Type("float8e5m2", 1, 1 << 3),
    )
}


# ---- floats as raw elements ----


def _float8_values(exponent_bits: int, first_special: int) -> Numbers:
    """The value of each code of an 8-bit float; NaN for codes from first_special on, without their sign."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    magnitude, bias = codes & 127, (1 << exponent_bits - 1) - 1
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    significand = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = np.where(codes < 128, 1.0, -1.0) * np.ldexp(significand, np.maximum(exponent, 1) - bias)
    return np.where(magnitude >= first_special, np.nan, values)


_FLOAT8 = {"float8e4m3": _float8_values(4, 127), "float8e5m2": _float8_values(5, 124)}


def _nearest(table: Numbers, values: Numbers) -> Raw:
    codes = np.flatnonzero(~np.isnan(table) & ((table != 0) | (np.arange(256) == 0)))
    codes = codes[np.argsort(table[codes])]
    places = np.searchsorted(table[codes], values).clip(max=len(codes) - 1)
    return np.asarray(codes[places], np.uint8)


def _bfloat16(values: Numbers) -> Raw:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


_ENCODERS: dict[str, Callable[[Numbers], Raw]] = {
    "float16": lambda values: values.astype(np.float16).view(np.uint16),
    "float32": lambda values: values.astype(np.float32).view(np.uint32),
    "float64": lambda values: values.astype(np.float64).view(np.uint64),
    "bfloat16": _bfloat16,
    **{name: functools.partial(_nearest, table) for name, table in _FLOAT8.items()},
}
_DECODERS: dict[str, Callable[[Raw], Numbers]] = {
    "float16": lambda raw: raw.view(np.float16).astype(np.float64),
    "float32": lambda raw: raw.view(np.float32).astype(np.float64),
    "float64": lambda raw: raw.view(np.float64),
    "bfloat16": lambda raw: (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64),
    **{name: table.__getitem__ for name, table in _FLOAT8.items()},
}


# ---- streams ----


@dataclass(frozen=True)
class Data:
    """The streams of a type and a reduction among a number of ranks, one period of each."""

    inputs: tuple[Raw, ...]
    """By rank."""
    reduced: Raw
    scalars: tuple[Raw, ...]
    """Of "premulsum", by rank: one element each."""


def fill(destination: Raw, period: Raw, first: int) -> None:
    """Writes a part of a stream, from element ``first`` on."""
    whole, rest = divmod(len(destination), PERIOD)
    start = first % PERIOD
    if whole:
        destination[: whole * PERIOD].reshape(whole, PERIOD)[:] = np.roll(period, -start)
    last = destination[whole * PERIOD :]
    before = min(rest, PERIOD - start)
    last[:before] = period[start : start + before]
    last[before:] = period[: rest - before]


@functools.cache
def data(dtype: str, reduction: str, ranks: int) -> Data:
    """The streams.

    Args:
        reduction: one of :data:`REDUCTIONS`; "" for data that is only moved, which is any bits.
    """
    kind = TYPES[dtype]
    random = np.random.default_rng([kind.code, ranks, len(reduction)])
    if not reduction:
        inputs = [random.integers(0, 256, PERIOD * kind.size, np.uint8).view(kind.raw) for _ in range(ranks)]
        return Data(tuple(inputs), inputs[0], ())
    return _floats(kind, reduction, ranks, random) if kind.exact else _integers(kind, reduction, ranks, random)


def _integers(kind: Type, reduction: str, ranks: int, random: np.random.Generator) -> Data:
    """Any integers: results wrap around, and the average is of a sum that has."""
    own = np.dtype(kind.name)
    inputs = [random.integers(0, 256, PERIOD * kind.size, np.uint8).view(own) for _ in range(ranks)]
    scalars = [np.array([3 + 2 * rank], own) for rank in range(ranks)]
    if reduction in (PREMULSUM, PREMULSUM_DEVICE):
        reduced = _fold(SUM, [values * scalar for values, scalar in zip(inputs, scalars, strict=True)])
    elif reduction == AVG:
        total = _fold(SUM, inputs)
        reduced = (total - np.fmod(total, own.type(ranks))) // own.type(ranks)  # towards zero
    else:
        reduced = _fold(reduction, inputs)
    return Data(
        tuple(values.view(kind.raw) for values in inputs),
        reduced.astype(own).view(kind.raw),
        tuple(scalar.view(kind.raw) for scalar in scalars),
    )


def _fold(reduction: str, inputs: list[Any]) -> Any:
    with np.errstate(over="ignore"):
        return functools.reduce(_FUNCTIONS[reduction], inputs)


def _floats(kind: Type, reduction: str, ranks: int, random: np.random.Generator) -> Data:
    scalars = [np.array([_scalar(kind, rank)]) for rank in range(ranks)]
    inputs = [_numbers(kind, reduction, ranks, random) for _ in range(ranks)]
    if reduction in (PREMULSUM, PREMULSUM_DEVICE):
        reduced = _fold(SUM, [values * scalar for values, scalar in zip(inputs, scalars, strict=True)])
    elif reduction == AVG:
        reduced = _fold(SUM, inputs) / ranks
    else:
        reduced = _fold(reduction, inputs)
    return Data(tuple(map(kind.encode, inputs)), kind.encode(reduced + 0.0), tuple(map(kind.encode, scalars)))


def _scalar(kind: Type, rank: int) -> float:
    """8-bit floats have no room for numbers of two magnitudes."""
    return 0.5 if kind.is_float8 or rank % 2 else 2.0


def _numbers(kind: Type, reduction: str, ranks: int, random: np.random.Generator) -> Numbers:
    """One rank's input.

    Sums stay within the whole numbers that are exact. For an average, NCCL multiplies by the rounded 1 / ranks: where
    ranks is 3 times a power of two, three times that rounds to the power of two in every type.
    """
    if reduction == PROD:
        return np.asarray(np.ldexp(random.choice([-1.0, 1.0], PERIOD), random.integers(-1, 2, PERIOD)))
    if reduction in (MIN, MAX):
        return _anything(kind, random)
    most = kind.exact // ranks // (4 if "premulsum" in reduction and not kind.is_float8 else 1)
    if reduction == AVG and ranks % 3 == 0:
        return 3.0 * random.integers(-1, 2, PERIOD) * (1 if most < 6 else random.integers(1, 3, PERIOD))
    return random.integers(-min(most, _MOST), min(most, _MOST) + 1, PERIOD).astype(np.float64)


def _anything(kind: Type, random: np.random.Generator) -> Numbers:
    """All kinds of finite numbers, but one zero only."""
    raw = random.integers(0, 256, PERIOD * kind.size, np.uint8).view(kind.raw)
    with np.errstate(invalid="ignore"):
        numbers = kind.decode(raw)
    return np.where(np.isfinite(numbers), numbers, 0.0) + 0.0
