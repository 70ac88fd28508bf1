# SPDX-License-Identifier: MIT
"""NCCL's own Socket network in real wheels: found by symbol, callable without a GPU."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bagua_net._nccl import socket_network
from tests.support import nccl_wheels

APIS = {"2.18.3": 6, "2.21.5": 8, "2.30.7": 12}

# In a separate process: load() changes the library's code permanently, and a wrong offset would crash.
CALL_TABLE = """
import ctypes, sys
from pathlib import Path
from bagua_net._nccl import socket_network
table = socket_network.inspect(Path(sys.argv[1]))
address = socket_network.load(table)
assert socket_network.load(table) == address
library = ctypes.CDLL(str(table.path))
device = ctypes.c_int(-1)
entry = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value - table.anchor_offset + table.patch_offset
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(entry)(ctypes.byref(device)) == 0
assert device.value == 0
row = (ctypes.c_void_p * 3).from_address(address)
print(ctypes.string_at(row[0]).decode(), table.nccl_version, table.api)
"""


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_finds_the_socket_table_of_each_generation(version: str) -> None:
    library = nccl_wheels.library(version)
    result = subprocess.run(
        [sys.executable, "-c", CALL_TABLE, str(library)], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == ["Socket", version, str(APIS[version])], result.stderr


def test_a_library_that_is_not_nccl_is_refused_by_name() -> None:
    python = Path(sys.executable).resolve()
    with pytest.raises(socket_network.NcclLibraryUnusable, match="ncclNetSocket"):
        socket_network.inspect(python)


def test_a_file_that_is_not_elf_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("not a library, but longer than an ELF header is: " + "x" * 100)
    with pytest.raises(socket_network.NcclLibraryUnusable, match="not a 64-bit"):
        socket_network.inspect(text)


@pytest.mark.parametrize("keep", [0, 4, 20, 64, 200])
def test_a_truncated_library_is_refused(tmp_path: Path, keep: int) -> None:
    """0 bytes cannot be mapped; 4 have no class, 20 no section table, 64 no sections."""
    cut = tmp_path / "libnccl.so.2"
    with Path(sys.executable).resolve().open("rb") as whole:
        cut.write_bytes(whole.read(keep))
    with pytest.raises(socket_network.NcclLibraryUnusable):
        socket_network.inspect(cut)


def test_a_library_for_another_processor_says_which(tmp_path: Path) -> None:
    code, name = (183, "aarch64") if platform.machine() == "x86_64" else (62, "x86_64")
    image = bytearray(Path(sys.executable).resolve().read_bytes())
    image[0x12:0x14] = code.to_bytes(2, "little")
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(image)
    with pytest.raises(socket_network.NcclLibraryUnusable, match=f"is for {name} processors"):
        socket_network.inspect(library)


def test_a_stripped_library_says_so(tmp_path: Path) -> None:
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("strip (binutils) is not installed")
    library = shutil.copyfile(Path(sys.executable).resolve(), tmp_path / "libnccl.so.2")
    subprocess.run([strip, str(library)], check=True, timeout=60)
    with pytest.raises(socket_network.NcclLibraryUnusable, match="stripped"):
        socket_network.inspect(library)
