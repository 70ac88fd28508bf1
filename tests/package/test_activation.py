# SPDX-License-Identifier: MIT
"""``activate()``, ``deactivate()`` and ``env()``: in time, reversible, and never over another choice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import bagua_net
from bagua_net._machine import rdma
from bagua_net._nccl import discovery
from tests.package.sandbox import Sandbox
from tests.support import nccl_wheels, netns
from tests.support.tiers import variants

LIBRARY = str(bagua_net.plugin_path())
#: What turns the plugin on.
ON = {"NCCL_NET_PLUGIN": LIBRARY, "NCCL_NET": "BaguaNet", "NCCL_NET_PLUGIN_REF_COUNT": "1"}
SECONDS = 60

pytestmark = pytest.mark.usefixtures("clean_environment")


def python(code: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a separate process, because libraries stay loaded."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_activate_sets_variables_and_deactivate_removes_them() -> None:
    before = dict(os.environ)
    found = bagua_net.activate()
    assert found == ON
    assert dict(os.environ) == before | found
    assert bagua_net.status().on
    assert bagua_net.status().plugin.layer == "activate()"
    bagua_net.deactivate()
    assert dict(os.environ) == before


def test_twice_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NET", "BAGUANET")
    before = dict(os.environ)
    assert bagua_net.activate() == bagua_net.activate()
    bagua_net.deactivate()
    bagua_net.deactivate()
    assert dict(os.environ) == before


@pytest.mark.parametrize(("name", "value"), [("NCCL_NET_PLUGIN", "other"), ("NCCL_NET", "Socket")])
def test_it_does_not_overwrite_a_choice_without_force(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with pytest.raises(bagua_net.ConflictingSetting, match=rf"{name}={value} .*force=True"):
        bagua_net.activate()
    assert dict(os.environ) == before
    bagua_net.activate(force=True)
    assert os.environ["NCCL_NET_PLUGIN"] == LIBRARY
    assert os.environ["NCCL_NET"] == "BaguaNet"
    bagua_net.deactivate()
    assert dict(os.environ) == before


def test_active_rdma_is_warned_of(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.add_rdma_port("mlx5_0", "4: ACTIVE")
    monkeypatch.setattr(rdma, "SYSFS", sandbox.root / "infiniband")
    with pytest.warns(RuntimeWarning, match=r"mlx5_0:1 .*activate\(force=True\)"):
        bagua_net.activate()
    bagua_net.deactivate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bagua_net.activate(force=True)


def test_a_bad_parameter_is_refused_before_anything_changes(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(sandbox.home))
    for set_it in (
        lambda: monkeypatch.setenv("BAGUA_NET_NSTREAMS", "999"),
        lambda: sandbox.confs[0].write_text("BAGUA_NET_NSTREAMS=999\n"),
    ):
        set_it()
        before = dict(os.environ)
        with pytest.raises(bagua_net.ParameterInvalid, match="BAGUA_NET_NSTREAMS=999: not in 0 … 64; unset it"):
            bagua_net.activate()
        assert dict(os.environ) == before
        monkeypatch.delenv("BAGUA_NET_NSTREAMS", raising=False)


def test_a_misspelt_parameter_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGUA_NET_NSTREMS", "4")
    with pytest.warns(RuntimeWarning, match=r"BAGUA_NET_NSTREMS is not a parameter; did you mean BAGUA_NET_NSTREAMS\?"):
        bagua_net.activate()
    assert bagua_net.status().on


def test_an_address_in_place_of_an_interface_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "127.0.0.1")
    with pytest.warns(RuntimeWarning, match=r"takes names: =lo for 127\.0\.0\.1, or BAGUA_NET_ADDRESS"):
        bagua_net.activate()


def test_a_prefix_is_refused_or_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGUA_NET_ADDRESS_PREFIX", "203.0.113.0/24, 127.0.0.1")
    with pytest.raises(bagua_net.ParameterInvalid, match=r'not an address or a prefix: " 127\.0\.0\.1"; unset'):
        bagua_net.activate()
    monkeypatch.setenv("BAGUA_NET_ADDRESS_PREFIX", "203.0.113.0/24")
    with pytest.warns(RuntimeWarning, match=r"PREFIX=.* \(environment\): no interface to use; this host has"):
        bagua_net.activate()


def test_deactivate_leaves_what_was_changed_since() -> None:
    bagua_net.activate()
    os.environ["NCCL_NET"] = "Socket"
    bagua_net.deactivate()
    assert os.environ.pop("NCCL_NET") == "Socket"
    assert "NCCL_NET_PLUGIN" not in os.environ


def test_a_child_inherits_it() -> None:
    bagua_net.activate()
    done = python("import bagua_net; print(bagua_net.status().on, bagua_net.status().plugin.layer)")
    assert done.stdout == "True environment\n"


def test_env_turns_another_process_on_and_leaves_this_one() -> None:
    before = dict(os.environ)
    variables = bagua_net.env()
    assert variables == ON
    assert dict(os.environ) == before
    assert python("import bagua_net; print(bagua_net.status().on)", **variables).stdout == "True\n"
    assert bagua_net.env(Path("/opt/x.so"))["NCCL_NET_PLUGIN"] == "/opt/x.so"


def test_env_takes_the_parameters_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without the secret would send in clear."""
    monkeypatch.setenv("BAGUA_NET_SECRET_FILE", "/run/secret")
    monkeypatch.setenv("BAGUA_NET_BENCH_TOKEN", "not for jobs")
    assert bagua_net.env() == ON | {"BAGUA_NET_SECRET_FILE": "/run/secret"}


def test_env_refuses_a_path_that_nccl_would_cut() -> None:
    with pytest.raises(bagua_net.PluginPathTooLong, match="NCCL keeps 254"):
        bagua_net.env(Path("/" + "x" * 254))
    assert len(bagua_net.env(Path("/" + "x" * 253))["NCCL_NET_PLUGIN"]) == 254
    with pytest.raises(bagua_net.PluginPathInvalid, match="comma"):
        bagua_net.env(Path("/a,b/libnccl-net-bagua.so"))


def test_it_is_too_late_after_an_nccl_process_group() -> None:
    pytest.importorskip("torch", reason="no torch here")
    code = (
        "import torch.distributed as dist, bagua_net\n"
        "from torch.distributed import distributed_c10d as c10d\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "bagua_net.activate(); bagua_net.deactivate(); print('gloo is no obstacle')\n"
        # The same group under NCCL's name: a group that uses NCCL needs a GPU.
        "group = dist.group.WORLD\n"
        "assert 'gloo' in c10d._world.pg_backend_config[group]\n"
        "c10d._world.pg_backend_config[group] = 'cpu:gloo,cuda:nccl'\n"
        "try: bagua_net.activate()\n"
        "except bagua_net.ActivationTooLate as error: print(error)"
    )
    done = python(code)
    assert "gloo is no obstacle" in done.stdout, done.stderr
    assert "before init_process_group()" in done.stdout


def test_importing_and_asking_load_nothing() -> None:
    done = python("import bagua_net; print(bagua_net.status().loaded, bagua_net.env() and bagua_net.status().loaded)")
    assert done.stdout == "False False\n", done.stderr


def test_the_functions_need_no_other_package() -> None:
    code = (
        "import sys\n"
        "for name in ('cffi', 'typer', 'click', 'rich'): sys.modules[name] = None\n"
        "import bagua_net\n"
        "bagua_net.activate()\n"
        "print(bagua_net.status().on, bagua_net.env()['NCCL_NET'], bagua_net.plugin_path().name)"
    )
    done = python(code)
    assert done.stdout == "True BaguaNet libnccl-net-bagua.so\n", done.stderr


#: An editable installation finds the package by a hook of its own, in front of every path.
_BY_PATH = "import sys\nsys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in type(one).__module__]\n"


def test_a_library_that_was_never_built_says_how_to_build_it(tmp_path: Path) -> None:
    package = Path(bagua_net.__file__).parent
    shutil.copytree(package, tmp_path / "bagua_net", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    code = "import bagua_net\ntry: bagua_net.activate()\nexcept bagua_net.LibraryNotFound as error: print(error)"
    done = python(_BY_PATH + code, PYTHONPATH=str(tmp_path))
    assert "cmake --build build" in done.stdout, done.stderr


def test_a_library_that_does_not_load_says_why(tmp_path: Path) -> None:
    package = Path(bagua_net.__file__).parent
    shutil.copytree(package, tmp_path / "bagua_net")
    (tmp_path / "bagua_net" / "lib" / "libnccl-net-bagua.so").write_bytes(b"not a library")
    code = (
        "import os, bagua_net\n"
        "try: bagua_net.activate()\n"
        "except bagua_net.LibraryUnusable as error: print(error, 'NCCL_NET' in os.environ)"
    )
    done = python(_BY_PATH + code, PYTHONPATH=str(tmp_path))
    assert "does not load" in done.stdout, done.stderr
    assert done.stdout.endswith("False\n")


# ---- with NCCL itself ----


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_it_knows_the_nccl_of_the_environment(sandbox: Sandbox, version: str) -> None:
    library = nccl_wheels.library(version)
    code = (
        "from bagua_net._nccl import discovery; n = discovery.find(); print(n.version_text, n.found_by, n.takes_path)"
    )
    found = python(code, **sandbox.with_nccl(library))
    assert found.stdout == f"{version} wheel {version != '2.18.3'}\n", found.stderr
    mapped = python(f"import ctypes, sys; ctypes.CDLL(sys.argv[1])\n{code}", str(library))
    assert mapped.stdout == f"{version} mapped {version != '2.18.3'}\n", mapped.stderr


def test_it_finds_the_nccl_of_a_conda_environment(tmp_path: Path) -> None:
    """Which no variable names: torch finds it relative to itself."""
    library = tmp_path / "lib" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    found = python(
        "import sys; sys.prefix = sys.argv[1]\n"
        "from bagua_net._nccl import discovery; print(*discovery.libraries(), sep='\\n')",
        str(tmp_path),
    )
    assert str(library) in found.stdout.splitlines(), found.stderr


@pytest.mark.gate
def test_children_find_the_library_for_an_nccl_that_takes_no_path(sandbox: Sandbox) -> None:
    code = (
        "import os, subprocess, sys, bagua_net\n"
        "before = dict(os.environ); bagua_net.activate(); bagua_net.activate()\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1]])\n"
        "bagua_net.deactivate(); print(dict(os.environ) == before)"
    )
    load = "import ctypes, os; ctypes.CDLL(f'libnccl-net-{os.environ[\"NCCL_NET_PLUGIN\"]}.so'); print('loaded')"
    done = python(code, load, **sandbox.with_nccl(nccl_wheels.library("2.18.3")))
    assert done.stdout == "loaded\nTrue\n", done.stderr


@pytest.mark.gate
@pytest.mark.parametrize("version", ["2.18.3", "2.21.5"])
@pytest.mark.parametrize("active", [True, False])
def test_nccl_loads_the_plugin_after_activate(version: str, active: bool) -> None:
    """Up to 2.21 the public ncclGetUniqueId loads the plugin, so this needs no GPU. NCCL does not log that it has found
    a network table; it goes on to look for a collective network's in the same library."""
    code = (
        "import ctypes, sys, bagua_net\n"
        "nccl = ctypes.CDLL(sys.argv[1])\n"
        "if sys.argv[2] == 'True': bagua_net.activate()\n"
        "nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))"
    )
    library = str(nccl_wheels.library(version))
    # Without the name, this NCCL reads ~/.nccl.conf, where the user may have turned the plugin on.
    settings = {} if active else {"NCCL_NET_PLUGIN": "none"}
    log = python(code, library, str(active), NCCL_DEBUG="INFO", NCCL_SOCKET_IFNAME="lo", **settings).stdout
    assert "Bootstrap" in log
    assert ("Failed to find ncclCollNetPlugin" in log) == active, log
    assert ("internal" in log) == (not active), log
    assert "Failed to find ncclNetPlugin" not in log


TRY_TO_ACTIVATE = """
import ctypes, sys, bagua_net
from pathlib import Path
from bagua_net._nccl import elf

def attempt():
    try:
        bagua_net.activate()
        bagua_net.deactivate()
        print("in time")
    except bagua_net.ActivationTooLate as error:
        print("too late:", error)

nccl = ctypes.CDLL(sys.argv[1])
attempt()
nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
attempt()
# What a communicator calls to get its network; one that is all zero is enough for it.
found = elf.symbols(Path(sys.argv[1]), ["_Z11ncclNetInitP8ncclComm", "ncclGetVersion"])
base = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value - found["ncclGetVersion"].offset
init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(base + found["_Z11ncclNetInitP8ncclComm"].offset)
assert init(ctypes.cast(ctypes.create_string_buffer(8 << 20), ctypes.c_void_p)) == 0
attempt()
"""


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_it_is_too_late_once_nccl_has_chosen(version: str) -> None:
    """Up to 2.21 the first ncclGetUniqueId loads the plugin, from 2.22 on the first communicator."""
    done = python(TRY_TO_ACTIVATE, str(nccl_wheels.library(version)), NCCL_SOCKET_IFNAME="lo")
    lines = done.stdout.splitlines()
    second = "in time" if version == "2.30.7" else "too late"
    assert [line.split(":")[0] for line in lines] == ["in time", second, "too late"], done.stdout + done.stderr
    assert "before the first communicator" in lines[2]


GETENV = """
import ctypes, sys
ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"NCCL_NET_PLUGIN").decode(), libc.getenv(b"NCCL_NET").decode())
"""


def with_home_in_the_password_database(home: Path, scratch: Path) -> list[str]:
    """A command prefix: the command after it sees this directory as the user's home in /etc/passwd."""
    netns.require_unshare()
    passwd = scratch / "passwd"
    passwd.write_text(f"root:x:0:0:root:{home}:/bin/sh\n")
    script = 'mount --bind "$0" /etc/passwd && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(passwd)]


@pytest.mark.parametrize(("version", "home"), variants(("2.30.7", 0), gate=[("2.18.3", 1), ("2.21.5", 1)]))
def test_nccl_reads_the_block_above_all_else(sandbox: Sandbox, version: str, home: int) -> None:
    """When NCCL first reads its settings, it puts those of its file into the environment. Up to 2.29 that is the file
    in the password database's home, from 2.30 on the one in $HOME."""
    library = nccl_wheels.library(version)
    prefix = with_home_in_the_password_database(sandbox.confs[1].parent, sandbox.root)
    sandbox.confs[home].write_bytes(b"NCCL_NET=Socket\r\nNCCL_NET_PLUGIN=other")
    assert sandbox.run("enable", "--force").returncode == 0
    sandbox.confs[1 - home].unlink()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", GETENV, str(library)],
        env=sandbox.environment(NCCL_SOCKET_IFNAME="lo"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.stdout == f"{sandbox.copies[home]} BaguaNet\n", done.stderr


@pytest.mark.parametrize(
    ("code", "version"), [(2708, (2, 7, 8)), (21803, (2, 18, 3)), (23007, (2, 30, 7)), (20904, (2, 9, 4))]
)
def test_version_numbers(code: int, version: tuple[int, int, int]) -> None:
    assert discovery.decode_version(code) == version


def test_mapped_files_are_found_by_name() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12  /opt/a b/libnccl.so.2.30.7\n"
        "7f01-7f02 r--p 00001000 08:01 12  /opt/a b/libnccl.so.2.30.7\n"
        "7f03-7f04 r-xp 00000000 08:01 13  /opt/libnccl-net.so\n"
        "7f05-7f06 rw-p 00000000 00:00 0\n"
    )
    assert discovery.mapped_files(maps, r"libnccl\.so(\.\d+)*") == ["/opt/a b/libnccl.so.2.30.7"]
