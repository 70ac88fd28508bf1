# SPDX-License-Identifier: MIT
"""NCCL's own loader, of three generations, finds the library, takes it, and chooses its network. No GPU needed.

A communicator's choice of a network is three steps: NCCL_NET is read into the communicator's configuration, the
plugins are loaded, and ``ncclNetInit`` writes the table of the network into the communicator. All three are called
here as NCCL calls them, on a communicator that is all zero, found in the library's own symbol table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import drivers
import nccl_wheels
import pytest

from bagua_net import _elf

SECONDS = 60

OVERRIDE, INIT, FINALIZE = (
    "_ZL17envConfigOverrideP8ncclComm",
    "_Z11ncclNetInitP8ncclComm",
    "_Z15ncclNetFinalizeP8ncclComm",  # 2.28 and later
)

# argv: libnccl.so.2, a library to load before NCCL looks for it or "", offsets of the functions above and of
# ncclGetVersion. It imports nothing of ours, so that what is in the process is what NCCL has loaded.
CHOOSE = """
import ctypes, json, os, sys
from pathlib import Path

nccl = ctypes.CDLL(sys.argv[1])
preload = ctypes.CDLL(sys.argv[2]) if sys.argv[2] else None
override, init, finalize, version = json.loads(sys.argv[3])
base = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value - version

def call(offset, argument):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(base + offset)(argument)

memory = os.open("/proc/self/mem", os.O_RDONLY)

def peek(address, size):
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""

def table_named(comm, name):
    # The communicator's fields differ between releases: its network is the one that points to a table whose first
    # entry, as in every version, points to the name.
    for word in (comm[i:i + 8] for i in range(0, len(comm), 8)):
        table = int.from_bytes(word, "little")
        name_at = int.from_bytes(peek(table, 8), "little") if table else 0
        if name_at and peek(name_at, len(name) + 1) == name + b"\\0":
            return table
    return None

nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
size = 8 << 20
comm = ctypes.create_string_buffer(size)
address = ctypes.cast(comm, ctypes.c_void_p)
call(override, address)
result = call(init, address)
print("result", result)
for name in (b"BaguaNet", b"Socket"):
    table = table_named(comm.raw[:1 << 17], name)
    if table is None:
        continue
    devices = ctypes.c_int()
    count = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int.from_bytes(peek(table + 16, 8), "little"))
    print("chose", name.decode(), count(ctypes.byref(devices)), devices.value)
if result == 0 and finalize:
    print("finalize", call(finalize, address))
print("mapped", "libnccl-net-bagua.so" in Path("/proc/self/maps").read_text())
"""


def offsets(nccl: Path) -> str:
    """Of the functions that are not exported, as JSON; null for one that this release lacks."""
    names = (OVERRIDE, INIT, FINALIZE, "ncclGetVersion")
    found = _elf.symbols(nccl, names)
    return json.dumps([found[name].offset if name in found else None for name in names])


def choose(version: str, plugin: str, preload: str = "", **settings: str) -> tuple[str, str]:
    """What the process found, and NCCL's log, after a communicator of this NCCL has chosen its network."""
    variables = drivers.environment({"NCCL_NET_PLUGIN": plugin, "NCCL_DEBUG": "INFO"} | settings)
    nccl = nccl_wheels.library(version)
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE, str(nccl), preload, offsets(nccl)],
        env=variables | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [
        line for line in done.stdout.splitlines() if line.split(" ")[0] in ("result", "chose", "finalize", "mapped")
    ]
    return "\n".join(found), done.stdout


def library() -> str:
    return str(drivers.build().library)


@pytest.mark.parametrize("version", ["2.21.5", "2.30.7"])
@pytest.mark.parametrize("named", [True, False])
def test_by_its_path(version: str, named: bool) -> None:
    """With NCCL_NET and without: an external network comes before NCCL's own."""
    found, log = choose(version, library(), **({"NCCL_NET": "BaguaNet"} if named else {}))
    assert "result 0" in found, log
    assert "chose BaguaNet 0 1" in found, log
    assert "chose Socket" not in found, log
    assert ("finalize 0" in found) == (version == "2.30.7"), log
    assert "Using network Socket" not in log


@pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
def test_preloaded_and_by_its_short_name(version: str) -> None:
    """The only way up to 2.20, which takes no path: the library in the process has the SONAME that NCCL asks for."""
    found, log = choose(version, "bagua", library(), NCCL_NET="BaguaNet")
    assert "result 0" in found, log
    assert "chose BaguaNet 0 1" in found, log


@pytest.mark.parametrize("version", ["2.18.3"])
def test_by_the_library_path(version: str) -> None:
    found, log = choose(version, "bagua", NCCL_NET="baguanet", LD_LIBRARY_PATH=str(Path(library()).parent))
    assert "chose BaguaNet 0 1" in found, log


@pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
def test_the_log_says_what_was_loaded(version: str) -> None:
    _, log = choose(version, "bagua", library())
    assert "BaguaNet" in log, log
    assert "NET/BaguaNet" in log, log


@pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
def test_a_missing_library_is_an_error_where_the_network_is_named(version: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "libnccl-net-bagua.so")
    found, log = choose(version, missing, NCCL_NET="BaguaNet")
    assert "result 5" in found, log  # ncclInvalidUsage
    assert "chose" not in found, log


@pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
def test_a_library_that_cannot_start_is_an_error_where_the_network_is_named(version: str) -> None:
    found, log = choose(version, "bagua", library(), NCCL_NET="BaguaNet", BAGUA_NET_NSTREAMS="many")
    assert "chose" not in found, log
    assert "result 0" not in found, log
    assert "BAGUA_NET_NSTREAMS" in log, log


@pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
def test_without_the_plugin_nccl_keeps_its_own(version: str) -> None:
    """The tests above would see it if the choice were not the plugin's."""
    found, log = choose(version, "" if version == "2.18.3" else "nothing-of-that-name")
    assert "chose Socket 0 1" in found, log
    assert "mapped False" in found, log
