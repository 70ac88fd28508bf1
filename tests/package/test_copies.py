# SPDX-License-Identifier: MIT
"""What ``enable`` leaves where hosts, users and homes differ: copies of the library that load, and stay."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import bagua_net
from bagua_net._activation import library_copy
from tests.package.sandbox import Sandbox, as_user, sandboxed

LIBRARY = bagua_net.plugin_path()
#: The offset of e_machine in an ELF file's header, and two values of it (System V ABI).
MACHINE, ON_X86, ON_ARM = 0x12, 62, 183
ANOTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"


def for_another_processor(path: Path) -> None:
    """Writes the library as if it were built for one."""
    image = bytearray(LIBRARY.read_bytes())
    image[MACHINE] = ON_ARM if image[MACHINE] == ON_X86 else ON_X86
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image)


def test_each_home_names_a_copy_of_its_own(sandbox: Sandbox) -> None:
    """$HOME may be that of a single job."""
    assert sandbox.run("enable").returncode == 0
    shutil.rmtree(sandbox.home)
    sandbox.home.mkdir()
    assert f"NCCL_NET_PLUGIN={sandbox.copies[1]}\n" in sandbox.confs[1].read_text()
    assert sandbox.copies[1].read_bytes() == LIBRARY.read_bytes()


def test_all_users_reach_the_system_s_copy_whatever_root_s_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "lib" / "bagua-net"
    monkeypatch.setattr(library_copy, "SYSTEM_DIRECTORY", directory)
    before = os.umask(0o077)
    try:
        path = library_copy.refresh(LIBRARY, directory, [])
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, *path.parents[:2])] == [0o755] * 3


def test_the_same_copy_is_not_replaced(sandbox: Sandbox) -> None:
    """By each host of a shared home, under the processes of all."""
    assert sandbox.run("enable").returncode == 0
    before = sandbox.copy.stat()
    assert sandbox.run("enable").returncode == 0
    assert sandbox.copy.stat().st_ino == before.st_ino


def test_an_older_copy_keeps_a_name(sandbox: Sandbox) -> None:
    """Over NFS a file without a name ends for the processes of other hosts."""
    assert sandbox.run("enable").returncode == 0
    with sandbox.copy.open("r+b") as older:
        older.seek(0, os.SEEK_END)
        older.write(b"older")
        older.flush()
        for _ in range(2):
            assert sandbox.run("enable").returncode == 0
            assert sandbox.copy.read_bytes() == LIBRARY.read_bytes()
            assert os.fstat(older.fileno()).st_nlink == 1
    assert sandbox.run("disable").returncode == 0
    assert not sandbox.copy.parent.exists()


def test_a_copy_for_another_processor_stays(sandbox: Sandbox) -> None:
    """A home on a shared file system."""
    for_another_processor(sandbox.copy)
    before = sandbox.files()
    done = sandbox.run("enable")
    assert done.returncode == 1
    assert f"{sandbox.copy} is for hosts with " in done.stderr
    assert f"one for {platform.machine()}; start the jobs of this host with `bagua-net run -- COMMAND`" in done.stderr
    assert sandbox.files() == before


def test_a_copy_that_does_not_load_is_off(sandbox: Sandbox) -> None:
    assert sandbox.run("enable").returncode == 0
    for_another_processor(sandbox.copy)
    done = sandbox.run("status")
    assert done.returncode == 1
    assert f"cannot be loaded here: it is for {ANOTHER}, and this host is {platform.machine()}" in done.stdout
    sandbox.copy.write_bytes(b"\x7fELF")
    assert "cannot be loaded here: " in sandbox.run("status").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system")
def test_a_file_system_without_execution_is_named(sandbox: Sandbox) -> None:
    data = sandbox.root / "data"
    data.mkdir()
    inside = f'mount -t tmpfs -o noexec none "{data}" && exec {sandboxed(sandbox.root)} enable'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside],
        env=sandbox.environment(XDG_DATA_HOME=str(data)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    assert done.returncode == 1
    assert "would not load: nothing may be executed on its file system (noexec); set XDG_DATA_HOME" in done.stderr
    assert not any(conf.exists() for conf in sandbox.confs)


def test_directories_that_may_not_be_looked_into_are_passed_over(sandbox: Sandbox) -> None:
    """As the dynamic linker does."""
    locked = sandbox.root / "locked"
    locked.mkdir(mode=0)
    for command in ("enable", "status", "env"):
        done = as_user(sandbox, command, LD_LIBRARY_PATH=str(locked))
        assert (done.returncode, "denied" in done.stderr) == (0, False), done.stderr


def test_another_user_s_home_is_named_before_it_is_read(sandbox: Sandbox) -> None:
    """An image's HOME=/root, and a user who is not root."""
    sandbox.run("enable")
    sandbox.home.chmod(0)
    done = as_user(sandbox, "enable")
    assert done.returncode == 0, done.stderr  # in the password database's home
    shutil.rmtree(sandbox.root / "database-home")
    done = as_user(sandbox, "enable")
    sandbox.home.chmod(0o755)
    assert done.returncode == 1
    assert "use --conf FILE with a file elsewhere" in done.stderr


def test_a_file_below_a_directory_that_this_host_lacks_keeps_the_copy(sandbox: Sandbox) -> None:
    """Another host that shares the home has mounted it."""
    scratch = sandbox.root / "scratch"
    scratch.mkdir()
    assert sandbox.run("enable", "--conf", str(scratch / "nccl.conf")).returncode == 0
    scratch.rename(sandbox.root / "elsewhere")
    for command in ("enable", "disable"):
        assert sandbox.run(command).returncode == 0
    assert sandbox.copy.exists()
    (sandbox.root / "elsewhere").rename(scratch)
    assert sandbox.run("disable", "--conf", str(scratch / "nccl.conf")).returncode == 0
    assert not sandbox.copy.exists()


def test_a_file_that_may_not_be_read_keeps_the_copy(sandbox: Sandbox) -> None:
    """That of root, who has enabled it with this user's HOME."""
    other = sandbox.root / "other"
    other.mkdir()
    assert sandbox.run("enable", "--conf", str(other / "nccl.conf")).returncode == 0
    assert sandbox.run("enable").returncode == 0
    other.chmod(0)
    done = as_user(sandbox, "disable")
    other.chmod(0o755)
    assert (done.returncode, f"{sandbox.confs[0]}: disabled" in done.stderr) == (0, True), done.stderr
    assert sandbox.copy.is_file()
    assert not sandbox.copies[1].exists()


def test_a_device_is_not_replaced(sandbox: Sandbox) -> None:
    """NCCL_CONF_FILE=/dev/null turns files off."""
    other = sandbox.root / "no-file"
    other.mkdir()
    done = sandbox.run("enable", NCCL_CONF_FILE=str(other))
    assert "here; unset NCCL_CONF_FILE, or use `bagua-net run -- COMMAND`" in done.stderr
    for command in ("enable", "disable"):
        done = sandbox.run(command, "--conf", str(other))
        assert (done.returncode, f"{other} is no regular file; name another one" in done.stderr) == (1, True)


def test_the_benchmark_s_secret_goes_to_no_job(sandbox: Sandbox) -> None:
    given = {"BAGUA_NET_BENCH_TOKEN": "not-for-ps", "BAGUA_NET_NSTREAMS": "4"}
    shown = sandbox.run("env", **given).stdout
    assert "BAGUA_NET_NSTREAMS" in shown
    assert "not-for-ps" not in shown + sandbox.run("status", **given).stdout


def test_a_copy_of_another_version_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    """The package was replaced, and the copy was not."""
    source = tmp_path / "old.c"
    source.write_text('const char *bnet_version(void) { return "0.0.1"; }\n')
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    assert sandbox.run("enable").returncode == 0
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(sandbox.copy), str(source)], check=True)
    said = [line for line in sandbox.run("doctor").stdout.splitlines() if " activation " in line]
    assert len(said) == 1
    assert "is of version 0.0.1, and this package of " in said[0]
