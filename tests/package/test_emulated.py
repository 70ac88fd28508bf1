# SPDX-License-Identifier: MIT
"""NCCL's functions from Python, its log, other plugins' names, and options without a value."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bagua_net
from bagua_net._native import plugin
from bagua_net._nccl import debug_log, emulated, net_plugin, shared_files
from tests.package import nccl_here
from tests.support import nccl_wheels

SECONDS = 100

# In a process of its own, as the emulator serves one NCCL per process and changes its code.
TWO_RANKS = """
import os, sys
from pathlib import Path
from bagua_net._nccl import emulated
from bagua_net._nccl.emulated import NO_COLOR, DataType, RedOp

rank, library = int(sys.argv[1]), Path(sys.argv[2])
nccl = emulated.open(library)
assert emulated.open(library) is nccl
pipe = os.fdopen(int(sys.argv[3]), "rb" if rank else "wb")
unique_id = pipe.read() if rank else nccl.get_unique_id()
if not rank:
    pipe.write(unique_id)
pipe.close()

def floats(*values):
    return bytearray(memoryview(__import__("array").array("f", values)).cast("B"))

def read(buffer):
    return memoryview(buffer).cast("f").tolist()

comm = nccl.comm_init_rank(2, unique_id, rank)
assert (comm.nranks, comm.rank, comm.get_async_error()) == (2, rank, 0)
stream = nccl.stream()
send, out = floats(1 + rank, 10 + rank), floats(0, 0)

comm.all_reduce(send, out, 2, DataType.FLOAT32, RedOp.SUM, stream)
stream.synchronize()
assert stream.done() and read(out) == [3, 21], read(out)

comm.reduce(send, out, 2, DataType.FLOAT32, RedOp.MAX, 1, stream)
stream.synchronize()
assert read(out) == ([2, 11] if rank == 1 else [3, 21]), read(out)

part = floats(0)
comm.reduce_scatter(send, part, 1, DataType.FLOAT32, RedOp.PROD, stream)
stream.synchronize()
assert read(part) == [110 if rank else 2], read(part)

comm.all_gather(emulated.address(memoryview(send)[4:]), out, 1, DataType.FLOAT32, stream)
stream.synchronize()
assert read(out) == [10, 11], read(out)

comm.broadcast(send, out, 2, DataType.FLOAT32, 1, stream)
stream.synchronize()
assert read(out) == [2, 11], read(out)

with nccl.group():
    comm.send(send, 2, DataType.FLOAT32, 1 - rank, stream)
    comm.recv(out, 2, DataType.FLOAT32, 1 - rank, stream)
stream.synchronize()
assert read(out) == [2 - rank, 11 - rank], read(out)

op = comm.red_op_create_pre_mul_sum(bytes(floats(0.5)), DataType.FLOAT32)
comm.all_reduce(send, out, 2, DataType.FLOAT32, op, stream)
stream.synchronize()
comm.red_op_destroy(op)
assert read(out) == [1.5, 10.5], read(out)

if nccl.has("ncclCommRegister"):
    registration = comm.register(out, len(out))
    comm.deregister(registration)
else:
    try:
        comm.register(out, len(out))
    except emulated.NcclFailed as error:
        assert str(error) == f"NCCL {nccl.version_text} has no ncclCommRegister"

alone = comm.split(0 if rank else NO_COLOR, 0)
assert (alone is None) == (rank == 0)
if alone is not None:
    assert (alone.nranks, alone.rank) == (1, 0)
    alone.destroy()
if nccl.has("ncclCommShrink") and rank == 0:
    left = comm.shrink([1])
    assert left.nranks == 1
    left.abort()

try:
    comm.all_reduce(send, out, 2, DataType.FLOAT32, 99, stream)
except emulated.NcclFailed as error:
    assert error.function == "ncclAllReduce" and error.code == 4, error
    text = str(error)
    assert text.startswith("ncclAllReduce: invalid argument") and "(ncclResult_t 4): " in text, text
    assert comm.last_error() and comm.last_error() in text, text
else:
    raise AssertionError("no error")
assert nccl.problem == "", nccl.problem
comm.destroy()
comm.destroy()
stream.destroy()
stream.destroy()
print("done")
"""


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_the_functions_of_nccl_between_two_ranks(version: str) -> None:
    library = nccl_wheels.library(version)
    read, write = os.pipe()
    settings = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}
    root = str(Path(bagua_net.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), str(library), str(descriptor)],
            env=os.environ | settings | {"PYTHONPATH": path},
            pass_fds=(descriptor,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, descriptor in ((0, write), (1, read))
    ]
    os.close(read)
    os.close(write)
    try:
        said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    assert all(text.endswith("done\n") for text in said)


@pytest.mark.gate
def test_the_version_is_asked_of_another_process() -> None:
    library = nccl_wheels.library("2.21.5")
    before = Path("/proc/self/maps").read_text().count("libnccl.so")
    assert emulated.probe(library) == (2, 21, 5)
    assert Path("/proc/self/maps").read_text().count("libnccl.so") == before


def test_another_attempt_may_follow_one_that_loaded_nothing(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("not a library")
    code = f"""
import os
from pathlib import Path
from bagua_net._nccl import emulated
for path, variable in ({str(text)!r}, "0"), ({str(nccl_wheels.library("2.30.7"))!r}, "1"):
    os.environ["NCCL_NVLS_ENABLE"] = variable
    try:
        emulated.open(Path(path))
    except emulated.NcclUnusable as error:
        print(error)
del os.environ["NCCL_NVLS_ENABLE"]
print(emulated.open(Path(path)).version_text)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    first, second, third = run.stdout.splitlines()
    assert "is no shared library" in first
    assert "NCCL_NVLS_ENABLE=1 asks for what" in second
    assert third == "2.30.7"


def test_the_files_of_a_process_that_ends_early_are_found() -> None:
    code = """
import mmap, tempfile
with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nccl-", delete=False) as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
print(file.name, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        path = Path(one.stdout.readline().strip())
        found = shared_files.of([one.pid])
        one.kill()
    assert found == {path}
    shared_files.remove(found)
    assert not path.exists()
    assert shared_files.of([one.pid]) == set()


def test_a_program_in_c_runs_nccl(tmp_path: Path) -> None:
    source, program = Path(__file__).parents[1] / "emulator" / "two_ranks.c", tmp_path / "two_ranks"
    compiler, beside = shutil.which("cc"), emulated.emulator_path().parent
    if compiler is None:
        pytest.skip("needs a C compiler")
    command = [compiler, f"-I{beside}", str(source), "-o", str(program), str(emulated.emulator_path())]
    subprocess.run([*command, f"-Wl,-rpath,{beside}"], check=True, timeout=60)
    settings = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": str(plugin.plugin_path()), "NCCL_NET": "BaguaNet"}
    run = subprocess.run(
        [program, nccl_wheels.library("2.30.7")], env=os.environ | settings, capture_output=True, text=True, timeout=60
    )
    assert sorted(run.stdout.splitlines()) == [f"rank {rank}: 1048576 elements, 0 wrong" for rank in range(2)]
    assert run.returncode == 0


def test_an_installation_without_the_emulator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "header_path", lambda: tmp_path / "bagua_net.h")
    with pytest.raises(emulated.NcclUnusable, match=r"libbagua-net-emulator\.so does not exist; install the package"):
        emulated.emulator_path()


def test_an_emulator_that_does_not_load_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "libbagua-net-emulator.so"
    broken.write_text("no library")
    with pytest.raises(emulated.NcclUnusable, match=r"does not load: .*; build it on this machine") as caught:
        emulated.open(tmp_path / "libnccl.so.2", broken)
    assert "find_library" not in str(caught.value)


def test_another_processor_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    with pytest.raises(emulated.NcclUnusable, match="this one is ppc64le"):
        emulated.emulator_path()


# ---- NCCL's log ----

LOG = """
host:1:1 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>
host:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin BaguaNet (v10)
[2026-01-01 00:00:00] host:1:9 [0] NCCL INFO Using network BaguaNet
host:1:9 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
host:1:9 [0] NCCL INFO Using network BaguaNet
host:1:1 [0] NCCL INFO 4096 Bytes -> Algo 1 proto 0 time 10.5
host:1:1 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
host:1:1 [0] NCCL INFO AllReduce: 9 Bytes -> Algo 5 proto 2 time 1
host:1:1 [0] NCCL INFO AllReduce: 9 Bytes -> Algo 77 proto 2 time 1

host:1:1 [0] other.cc:9 NCCL WARN Some other thing
host:1:1 [0] wire.c:9 NCCL WARN NET/BaguaNet: the cause
host:1:1 [0] wire.c:9 NCCL WARN NET/BaguaNet: its consequence
"""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> debug_log.DebugLog:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")  # so that the values from before come back
        monkeypatch.delenv(name)
    made = debug_log.DebugLog.start()
    assert made is not None
    return made


def write(text: str) -> None:
    """As NCCL does it."""
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as file:
        file.write(text)


def test_the_log_is_read_once_and_says_what_nccl_uses(log: debug_log.DebugLog) -> None:
    write(LOG)
    lines = log.new_lines()
    assert log.new_lines() == []
    assert debug_log.network(lines) == "BaguaNet"
    assert debug_log.network(lines[:2]) is None
    assert [line.split(",")[0] for line in debug_log.evidence(lines)] == ["Using network BaguaNet", "2 coll channels"]
    assert debug_log.channels(lines) == debug_log.evidence(lines)[1:]
    assert debug_log.choices(lines) == ["RING/LL", "NVLS_TREE/SIMPLE", "77/SIMPLE"]


def test_an_error_is_explained_by_the_network_s_first_warning(log: debug_log.DebugLog) -> None:
    assert log.explain(ValueError("it failed")) == "it failed"
    write(LOG)
    assert log.explain(ValueError("it failed")) == "it failed, after NET/BaguaNet: the cause"
    assert log.explain(ValueError("NET/BaguaNet: the cause, again")) == "NET/BaguaNet: the cause, again"


def test_a_log_that_the_user_asked_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    assert debug_log.DebugLog.start() is None
    assert (os.environ["NCCL_DEBUG"], "NCCL_DEBUG_FILE" in os.environ) == ("WARN", False)


# ---- other plugins ----


def test_a_plugin_is_named_by_path_or_by_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/one::/two")
    mine = Path("/opt/lib/libnccl-net-mine.so")
    assert net_plugin.variables(mine, (2, 21, 0)) == {"NCCL_NET_PLUGIN": str(mine)}
    assert net_plugin.variables(mine, (2, 20, 5)) == {
        "NCCL_NET_PLUGIN": "mine",
        "LD_LIBRARY_PATH": "/opt/lib:/one:/two",
    }
    with pytest.raises(net_plugin.PluginUnusable, match=r"only plugins named libnccl-net-NAME\.so"):
        net_plugin.variables(Path("/opt/lib/mine.so"), (2, 20, 5))


def test_a_plugin_tells_the_name_of_its_network(tmp_path: Path) -> None:
    assert net_plugin.network_name(plugin.plugin_path()) == "BaguaNet"
    with pytest.raises(net_plugin.PluginUnusable, match="is no network plugin"):
        net_plugin.network_name(nccl_here.build(tmp_path, "another"))
    text = tmp_path / "libnccl-net-text.so"
    text.write_text("no library")
    with pytest.raises(net_plugin.PluginUnusable, match="does not load"):
        net_plugin.network_name(text)
    copy = shutil.copyfile(plugin.plugin_path(), tmp_path / "libnccl-net-copy.so")
    assert net_plugin.network_name(copy) == "BaguaNet"
