# SPDX-License-Identifier: MIT
"""RCCL, AMD's NCCL: found where it is, and turned on by the file that it reads.

Its library is a substitute that tells a version: that is all that the package asks of it. test_rccl_loader.py runs
RCCL's own loader.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import bagua_net
from tests.package.sandbox import Sandbox

pytestmark = pytest.mark.gate

_SOURCE = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"
_NOT_PYTHONS = {"torch": "torch/lib/librccl.so", "rocm": "rocm/lib/librccl.so.1", "system": "lib/librccl.so.1"}


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("needs a C compiler")
    return found


def rccl(sandbox: Sandbox, compiler: str, where: str, version: int) -> dict[str, str]:
    """Puts an RCCL of this version there. Returns the variables with which it is found."""
    path = sandbox.root / _NOT_PYTHONS[where]
    path.parent.mkdir(parents=True)
    source = sandbox.root.parent / "rccl.c"
    source.write_text(_SOURCE % version)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(source)], check=True, timeout=60)
    if where == "torch":
        (sandbox.root / "torch" / "__init__.py").touch()
        paths = os.pathsep.join(filter(None, [str(sandbox.root), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": paths}
    return {"LD_LIBRARY_PATH": str(path.parent)} if where == "system" else {}


def rccl_confs(sandbox: Sandbox) -> list[Path]:
    return [conf.with_name(".rccl.conf") for conf in sandbox.confs]


@pytest.mark.parametrize("where", _NOT_PYTHONS)
def test_enable_finds_it_and_disable_undoes_exactly_that(sandbox: Sandbox, compiler: str, where: str) -> None:
    variables = rccl(sandbox, compiler, where, 22105)
    rccl_confs(sandbox)[0].write_bytes(b"NCCL_DEBUG=WARN")
    before = sandbox.files()
    done = sandbox.run("enable", **variables)
    assert done.returncode == 0, done.stderr
    for conf, copy in zip((*sandbox.confs, *rccl_confs(sandbox)), 2 * sandbox.copies, strict=True):
        assert f"{conf}: enabled\n" in done.stderr
        assert f"NCCL_NET_PLUGIN={copy}\nNCCL_NET=BaguaNet\n" in conf.read_text()
    done = sandbox.run("disable")
    assert done.returncode == 0, done.stderr
    assert f"{rccl_confs(sandbox)[0]}: disabled\n" in done.stderr
    assert sandbox.files() == before


@pytest.mark.quick
def test_without_one_nothing_is_said_of_it(sandbox: Sandbox) -> None:
    assert "rccl" not in sandbox.run("enable").stderr
    assert not any(conf.exists() for conf in rccl_confs(sandbox))
    assert "rccl" not in sandbox.run("disable").stderr


def test_it_may_be_asked_for_where_none_is_found(sandbox: Sandbox) -> None:
    """For example on a login node."""
    before = sandbox.files()
    assert sandbox.run("enable", "--rccl").returncode == 0
    assert [conf.exists() for conf in rccl_confs(sandbox)] == [True, True]
    sandbox.run("disable")
    assert sandbox.files() == before


def test_for_all_users(sandbox: Sandbox) -> None:
    before = sandbox.files()
    assert sandbox.run("enable", "--system", "--rccl").returncode == 0
    conf = sandbox.system_conf.with_name("rccl.conf")
    assert conf.read_bytes() == sandbox.system_conf.read_bytes()
    assert not any(conf.exists() for conf in rccl_confs(sandbox))
    sandbox.run("disable", "--system")
    assert sandbox.files() == before


def test_the_copy_stays_while_only_rccls_file_names_it(sandbox: Sandbox) -> None:
    sandbox.run("enable", "--rccl")
    for conf in sandbox.confs:
        conf.unlink()
    sandbox.run("enable", "--conf", str(sandbox.root / "job.conf"))
    sandbox.run("disable", "--conf", str(sandbox.root / "job.conf"))
    assert sandbox.copy.exists()
    sandbox.run("disable")
    assert not sandbox.copy.exists()


def test_one_file_takes_no_rccl(sandbox: Sandbox) -> None:
    assert sandbox.run("enable", "--rccl", "--conf", "job.conf").returncode == 2
    assert sandbox.files() == {}


@pytest.mark.parametrize(("version", "homes"), [(22105, [1]), (22803, [1]), (23004, [0])])
def test_status_reads_its_file_in_the_home_where_it_looks(
    sandbox: Sandbox, compiler: str, version: int, homes: list[int]
) -> None:
    variables = rccl(sandbox, compiler, "torch", version)
    sandbox.run("enable", **variables)
    assert sandbox.run("status", **variables).returncode == 0
    for number, conf in enumerate(rccl_confs(sandbox)):
        if number not in homes:
            conf.unlink()
    done = sandbox.run("status", "--json", **variables)
    found = json.loads(done.stdout)
    assert (done.returncode, found["nccl"]["product"]) == (0, "RCCL")
    assert found["plugin"]["layer"] == str(rccl_confs(sandbox)[homes[0]])
    rccl_confs(sandbox)[homes[0]].unlink()
    assert sandbox.run("status", **variables).returncode == 1, "NCCL's files count for nothing"


@pytest.mark.parametrize(("version", "read"), [(22105, False), (22707, False), (22803, True)])
def test_a_file_that_stands_in_for_its_own(sandbox: Sandbox, compiler: str, version: int, read: bool) -> None:
    """NCCL reads NCCL_CONF_FILE from 2.23 on, RCCL from 2.28.3 on."""
    variables = rccl(sandbox, compiler, "torch", version)
    conf = sandbox.root / "job.conf"
    assert sandbox.run("enable", "--conf", str(conf), **variables).returncode == 0
    assert not any(conf.exists() for conf in rccl_confs(sandbox))
    done = sandbox.run("status", NCCL_CONF_FILE=str(conf), **variables)
    assert done.returncode == (0 if read else 1)
    if read:
        said = sandbox.run("enable", "--dry-run", NCCL_CONF_FILE=str(conf), **variables).stderr
        assert "NCCL will not read .rccl.conf here" in said


def test_one_that_takes_no_path_is_refused(sandbox: Sandbox, compiler: str) -> None:
    variables = rccl(sandbox, compiler, "torch", 22005)
    before = sandbox.files()
    for arguments in (["enable"], ["run", "--", "true"]):
        done = sandbox.run(*arguments, **variables)
        assert done.returncode == 1
        assert "RCCL 2.20.5" in done.stderr
        assert "take RCCL 2.21 or later, which came with ROCm 6.3" in done.stderr
        assert done.stderr.count("\n") == 1
    assert sandbox.files() == before
    status = sandbox.run("status", NCCL_NET_PLUGIN="bagua", NCCL_NET="BaguaNet", **variables)
    assert status.returncode == 1
    assert "loads only libraries named librccl-net-NAME.so" in status.stdout


def test_an_old_one_beside_the_nccl_of_the_job_gets_no_file(sandbox: Sandbox, compiler: str) -> None:
    """Its jobs would end: they could not load the plugin."""
    rccl(sandbox, compiler, "rocm", 22005)
    nccl = sandbox.root / "libnccl.so.2"
    shutil.copy(sandbox.root / _NOT_PYTHONS["rocm"], nccl)
    variables = {"LD_LIBRARY_PATH": str(sandbox.root)}
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(nccl), "-x", "c", "-"],
        input=_SOURCE % 22105,
        text=True,
        check=True,
        timeout=60,
    )
    assert sandbox.run("enable", **variables).returncode == 0
    assert not any(conf.exists() for conf in rccl_confs(sandbox))
    refused = sandbox.run("enable", "--rccl", **variables)
    assert (refused.returncode, "RCCL 2.20.5" in refused.stderr) == (1, True)


@pytest.mark.quick
def test_run_names_the_library_by_its_path(sandbox: Sandbox, compiler: str) -> None:
    variables = rccl(sandbox, compiler, "torch", 22105)
    done = sandbox.run("run", "--", "sh", "-c", 'echo "$NCCL_NET_PLUGIN"', **variables)
    assert done.stdout.strip() == str(bagua_net.plugin_path())


@pytest.mark.parametrize(
    ("version", "verdict", "part"),
    [
        (22105, "ok", "takes a path, and reads .rccl.conf"),
        (22005, "fail", "takes no path and loads only libraries named librccl-net-NAME.so"),
    ],
)
def test_doctor_says_what_applies(sandbox: Sandbox, compiler: str, version: int, verdict: str, part: str) -> None:
    done = sandbox.run("doctor", "--json", NCCL_SOCKET_IFNAME="lo", **rccl(sandbox, compiler, "torch", version))
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["RCCL"]["verdict"] == verdict
    assert part in checks["RCCL"]["fact"]
    assert (checks["RCCL"]["fix"] != "") is (verdict == "fail")
    assert "NCCL" not in checks


def test_status_names_it(sandbox: Sandbox, compiler: str) -> None:
    assert "\nRCCL 2.21.5  " in sandbox.run("status", **rccl(sandbox, compiler, "torch", 22105)).stdout


def test_nccl_without_a_gpu_does_not_take_it(sandbox: Sandbox, compiler: str) -> None:
    variables = rccl(sandbox, compiler, "torch", 22105)
    done = sandbox.run("doctor", "--json", "--nccl", NCCL_SOCKET_IFNAME="lo", **variables)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["NCCL load"]["verdict"] == "fail"
    assert "librccl" not in checks["NCCL load"]["fact"]
