# SPDX-License-Identifier: MIT
"""Functions that Python calls through ctypes: the types of their parameters are those of the header."""

from __future__ import annotations

import ctypes

import pytest

from bagua_net._native import library

_OF_HEADER = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "void": None,
}


_CALLED = {**library.QUICK, **library.PATIENT}


@pytest.mark.parametrize("name", sorted(_CALLED))
def test_types_are_those_of_the_header(name: str) -> None:
    declared = library.ffi.typeof(getattr(library.load_host(), name))
    kinds = [declared.result, *declared.args]
    assert list(_CALLED[name]) == [
        ctypes.c_void_p if kind.kind == "pointer" else _OF_HEADER[kind.cname] for kind in kinds
    ]


def test_addresses() -> None:
    pointer = library.ffi.new("int *", 7)
    assert ctypes.cast(library.address(pointer), ctypes.POINTER(ctypes.c_int)).contents.value == 7
    assert library.address(library.ffi.NULL) == 0
