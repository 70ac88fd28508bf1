# SPDX-License-Identifier: MIT
"""A build that cannot work ends with one sentence that says what is missing. The compiler is this machine's, with the
macros and headers of another one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[2]

#: Headers that stand in front of the system's.
_NO_KERNEL = {"linux/rtnetlink.h": '#error "no such file"\n'}
_OLD_LIBC = {"features.h": "#include_next <features.h>\n#undef __GLIBC_MINOR__\n#define __GLIBC_MINOR__ 12\n"}


def _configure(build: Path, *options: str, prefix: tuple[str, ...] = (), **settings: str) -> tuple[int, str]:
    """The status and the error of `cmake`, in one line."""
    command = [*prefix, "cmake", "-S", str(ROOT), "-B", str(build), "-DBNET_TESTS=OFF", *options]
    command += ["-DSKBUILD=ON", "-DSKBUILD_STATE=wheel"]  # leaves the source tree as it is
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, " ".join(done.stderr.split())


def _compiler(directory: Path, flags: str, headers: dict[str, str]) -> str:
    """gcc with these flags, and these headers before its own."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    for name, text in headers.items():
        (directory / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "include" / name).write_text(text)
    made = directory / "gcc"
    made.write_text(f'#!/bin/sh\nexec {gcc} -I {directory}/include {flags} "$@"\n')
    made.chmod(0o755)
    return str(made)


@pytest.fixture(autouse=True)
def _needs_cmake() -> None:
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")


@pytest.mark.parametrize(
    ("flags", "headers", "sentence"),
    [
        ("-U__GNUC__ -D__GNUC__=7", {}, r"is GNU 7\.\d+\.\d+, which does not know C17: remove .* and name gcc 8\.1"),
        ("-U__x86_64__ -U__aarch64__", {}, r"is for x86-64 and aarch64, and .* makes code for another processor"),
        ("", _OLD_LIBC, r"has no headers of a C library, or those of a glibc before 2\.17: install newer ones"),
        ("", _NO_KERNEL, r"The kernel's headers, .*, are missing: install linux-libc-dev on Debian and Ubuntu"),
    ],
    ids=["old compiler", "processor", "old libc", "no kernel headers"],
)
def test_a_compiler_that_lacks_something(tmp_path: Path, flags: str, headers: dict[str, str], sentence: str) -> None:
    status, error = _configure(tmp_path / "build", CC=_compiler(tmp_path, flags, headers))
    assert status == 1
    assert re.search(sentence, error), error
    assert error.count("CMake Error") == 1


def test_what_was_missing_is_looked_for_again(tmp_path: Path) -> None:
    """In the same build directory, as pip keeps one."""
    compiler = _compiler(tmp_path, "", _NO_KERNEL)
    assert _configure(tmp_path / "build", CC=compiler)[0] == 1
    shutil.rmtree(tmp_path / "include")
    assert _configure(tmp_path / "build", CC=compiler) == (0, "")


def test_a_machine_without_a_compiler(tmp_path: Path) -> None:
    hidden = (sys.executable, "-m", "tests.support.lacking", "compiler", "--")
    status, error = _configure(tmp_path / "build", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", prefix=hidden)
    assert status == 1
    assert "There is no C compiler here: install gcc or clang, or name one in the variable CC." in error


def test_another_system(tmp_path: Path) -> None:
    status, error = _configure(tmp_path / "build", "-DCMAKE_SYSTEM_NAME=Darwin")
    assert status == 1
    assert "bagua_net is for Linux, and this is Darwin: build it on Linux, or in a container." in error
