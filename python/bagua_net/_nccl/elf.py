# SPDX-License-Identifier: MIT
"""Local symbols of a library file: those in ``.symtab``, which the dynamic linker does not offer."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Layouts: System V ABI, "ELF-64 Object File Format", little-endian.
_MAGIC = b"\x7fELF\x02\x01"
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_UNDEFINED = 0
_MACHINES = {62: "x86_64", 183: "aarch64"}


class Symbol(NamedTuple):
    """A symbol's offset from the library's load address, and its size in bytes."""

    offset: int
    size: int


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


@contextmanager
def _image(path: Path) -> Iterator[mmap.mmap]:
    """The file in memory. A read beyond its end inside the block becomes a ValueError."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            try:
                yield image
            except (struct.error, IndexError) as error:
                raise ValueError(f"{path} is damaged: {error}") from error


def _sections(image: mmap.mmap) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", image, 0x28)
    _, count = struct.unpack_from("<HH", image, 0x3A)
    headers = (_SECTION_HEADER.unpack_from(image, start + index * _SECTION_HEADER.size) for index in range(count))
    return [_Section(kind=row[1], offset=row[4], size=row[5], link=row[6]) for row in headers]


def machine(path: Path) -> str:
    """The processor that a library is built for, as ``platform.machine()`` names it; "another" if unknown here.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no 64-bit little-endian ELF file, or it is damaged.
    """
    with _image(path) as image:
        (code,) = struct.unpack_from("<H", image, 0x12)
    return _MACHINES.get(code, "another")


def symbols(path: Path, names: Iterable[str]) -> dict[str, Symbol]:
    """The defined symbols of these names. Missing ones are left out; a stripped file has none.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no 64-bit little-endian ELF file, or it is damaged.
    """
    found: dict[str, Symbol] = {}
    with _image(path) as image:
        sections = _sections(image)
        for table in sections:
            if table.kind == _SYMTAB:
                texts = sections[table.link]
                strings = image[texts.offset : texts.offset + texts.size]
                rows = image[table.offset : table.offset + table.size]
                found |= _pick(strings, rows, names)
    return found


def _pick(strings: bytes, rows: bytes, names: Iterable[str]) -> dict[str, Symbol]:
    # A symbol's name is an offset into the strings; a shorter name may share the tail of a longer one.
    at = {match.start(): name for name in names for match in re.finditer(re.escape(name.encode()) + b"\0", strings)}
    return {
        at[name]: Symbol(value, size)
        for name, _, _, section, value, size in _SYMBOL.iter_unpack(rows)
        if name in at and section != _UNDEFINED
    }
