# SPDX-License-Identifier: MIT
"""Sizes in bytes: parsing, printing, and geometric sequences of them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse(text: str) -> int:
    """The bytes in "4", "64K", "64KiB", "1M" or "2G"; suffixes are powers of 1024.

    Raises:
        ValueError: the text has another form, or is zero.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size == 0:
        raise ValueError(f"{text!r} is not a size; write for example 4, 64K, 1M or 2G")
    return size


def show(size: int) -> str:
    """The shortest exact form that :func:`parse` reads back: 65536 is "64 KiB", 1000 is "1000 B"."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}iB"
    return f"{size} B"


def sweep(smallest: int, largest: int, factor: int) -> list[int]:
    """smallest, smallest × factor, … up to largest.

    Raises:
        ValueError: largest is below smallest, or factor is below 2.
    """
    if largest < smallest:
        raise ValueError(f"the largest size ({show(largest)}) is below the smallest ({show(smallest)})")
    if factor < 2:
        raise ValueError(f"the factor between two sizes is at least 2, not {factor}")
    sizes = []
    while smallest <= largest:
        sizes.append(smallest)
        smallest *= factor
    return sizes
