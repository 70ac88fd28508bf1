# SPDX-License-Identifier: MIT
"""The libraries from Python: headers and binaries agree, and nothing else is exported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bagua_net
from bagua_net._machine import interfaces
from bagua_net._native import library
from bagua_net._native.plugin import header_path, host_header_path, host_path
from bagua_net._settings import parameters

pytestmark = pytest.mark.usefixtures("clean_environment")


def declared(header: Path) -> set[str]:
    region = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", header.read_text(), re.DOTALL)
    assert region is not None
    code = re.sub(r"/\*.*?\*/", "", region.group(1), flags=re.DOTALL)
    return set(re.findall(r"\b(bnet_\w+)\(", code))


def test_every_declared_function_is_there() -> None:
    plugin, host = declared(header_path()), declared(host_header_path())
    assert plugin >= {"bnet_abi_version", "bnet_param_get"}
    assert host >= {"bnet_host_abi_version", "bnet_coll_allreduce"}
    assert [name for name in plugin if not hasattr(library.load(), name)] == []
    assert [name for name in host if not hasattr(library.load_host(), name)] == []


def _exported(path: Path) -> set[str]:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm(1) here")
    command = [nm, "-D", "--defined-only", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def test_only_the_tables_and_the_declared_functions_are_exported() -> None:
    tables = {f"ncclNetPlugin_v{version}" for version in range(4, 13)}
    assert _exported(bagua_net.plugin_path()) == tables | declared(header_path())
    assert _exported(host_path()) == declared(host_header_path())


each_library = pytest.mark.parametrize("path", [bagua_net.plugin_path(), host_path()], ids=lambda path: path.name)


def _dynamic(path: Path) -> list[tuple[str, str]]:
    """Tag and value of each row of a library's dynamic section."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf(1) here")
    command = [readelf, "--dynamic", "--wide", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return re.findall(r"^ 0x[0-9a-f]+ \((\w+)\) +(.*?)\s*$", shown, re.MULTILINE)


@each_library
def test_nothing_but_libc_is_needed(path: Path) -> None:
    needed = [re.sub(r".*\[(.*)\]", r"\1", value) for tag, value in _dynamic(path) if tag == "NEEDED"]
    assert "libc.so.6" in needed
    libc = re.compile(r"lib(c|pthread)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
    assert [name for name in needed if not libc.fullmatch(name)] == []


@each_library
def test_the_soname_is_the_file_name(path: Path) -> None:
    """An NCCL that takes no path asks the linker for the plugin's name."""
    names = [value for tag, value in _dynamic(path) if tag == "SONAME"]
    assert names == [f"Library soname: [{path.name}]"]


@each_library
def test_it_is_bound_at_once_and_stays(path: Path) -> None:
    """A missing symbol fails the load; the code of our threads stays mapped when the library is unloaded."""
    flags = {word for tag, value in _dynamic(path) if tag == "FLAGS_1" for word in value.split()}
    assert flags >= {"NOW", "NODELETE"}


def test_the_version_is_the_packages() -> None:
    assert library.text(library.load().bnet_version()) == bagua_net.__version__


def test_tables_by_number() -> None:
    lib = library.load()
    assert [version for version in range(20) if lib.bnet_net_table(version) != library.ffi.NULL] == [*range(4, 13)]


@pytest.mark.parametrize("name", ["PLUGIN", "HOST"])
def test_another_interface_version_is_refused(name: str) -> None:
    code = (
        "import sys; from bagua_net import LibraryUnusable; from bagua_net._native import library\n"
        "one = getattr(library, sys.argv[1])\n"
        "one.version = 99\n"
        "try: one.load()\n"
        "except LibraryUnusable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60)
    own = getattr(library, name).version
    assert f"has interface version {own} and this package needs 99" in done.stdout, done.stderr


def test_params_are_complete_and_at_their_defaults() -> None:
    rows = parameters.read()
    assert {"BAGUA_NET_NSTREAMS", "BAGUA_NET_MIN_CHUNKSIZE", "BAGUA_NET_PORT_RANGE"} <= {row.name for row in rows}
    for row in rows:
        assert row.help
        assert row.error is None
        assert (row.set, row.value) == (False, row.default)


def test_interfaces_are_offered_or_rejected_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=lo")
    rows = interfaces.scan()
    assert [row.name for row in rows if row.reason is None] == ["lo"]
    assert {row.name for row in rows} >= {path.name for path in Path("/sys/class/net").iterdir() if path.is_dir()}


WARNINGS_AT_INIT = """
import ctypes
from bagua_net import plugin_path
text, number = ctypes.c_char_p, ctypes.c_int
Log = ctypes.CFUNCTYPE(None, number, ctypes.c_ulong, text, number, text, text)
log = Log(lambda level, flags, file, line, form, said: level == 2 and print(said.decode()))
table = ctypes.c_void_p.in_dll(ctypes.CDLL(str(plugin_path())), "ncclNetPlugin_v8")
init = ctypes.cast((ctypes.c_void_p * 2).from_address(ctypes.addressof(table))[1], ctypes.CFUNCTYPE(ctypes.c_int, Log))
init(log)
"""


@pytest.mark.parametrize(
    "name", ["NSTREMS", "STREAMS", "PROT_RANGE", "MIN_CHUNK_SIZE", "IMPLEMENT", "", "SNDBUFS", "RCVBUFFER", "XXXDBUF"]
)
def test_a_name_that_nobody_reads_is_called_the_same_here_and_in_the_job(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"BAGUA_NET_{name}", "1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    done = subprocess.run([sys.executable, "-c", WARNINGS_AT_INIT], capture_output=True, text=True, timeout=60)
    (sentence,) = parameters.check()
    assert done.stdout == f"NET/BaguaNet: {sentence}\n", done.stderr
