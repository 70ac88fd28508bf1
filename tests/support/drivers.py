# SPDX-License-Identifier: MIT
"""Builds and runs the C programs that use the library as NCCL does: drive_net, drive_steps and drive_contract.

    built = drivers.build()            # once per session; skips the test without a compiler
    summary = drivers.net(built, "--api", "12", "--procs", "4")
    drivers.contract(built, 12, "zero_bytes")

The library is built with them and with the same sanitizer; nothing is installed.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
APIS = tuple(range(4, 13))
SANITIZERS = ("address", "thread")

_BUILD_SECONDS = 900
_TARGETS = ("nccl-net-bagua", "drive_net", "drive_steps", "drive_contract")
_SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # A test forks with threads running and starts new ones in the child, as hosts of the library do.
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0",
}


@dataclass(frozen=True)
class Build:
    sanitizer: str
    library: Path
    drive_net: Path
    drive_steps: Path
    drive_contract: Path

    def seconds(self, plain: int) -> int:
        """The time limit for something that takes at most this long in a plain build."""
        return plain * 4 if self.sanitizer else plain


def _make(directory: Path, sanitizer: str) -> subprocess.CompletedProcess[str]:
    # As for a wheel: the library stays in the build directory and does not replace the package's.
    configure = ["cmake", "-S", str(ROOT), "-B", str(directory), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    configure += ["-DSKBUILD=ON", "-DSKBUILD_STATE=wheel", "-DBNET_TESTS=ON", f"-DBNET_SANITIZE={sanitizer}"]
    compile_ = ["cmake", "--build", str(directory), "--parallel", "--target", *_TARGETS]
    for command in (configure, compile_):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS)
        if done.returncode != 0:
            break
    return done


@functools.cache
def build(sanitizer: str = "") -> Build:
    """The drivers and the library, from the sources as they are now. "" is a plain build.

    Skips the calling test where cmake or a C compiler is missing, and fails it where the build fails.
    """
    for tool in ("cmake", os.environ.get("CC", "cc").split()[0]):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed, and the drivers are C")
    directory = ROOT / f"build-tests-{sanitizer or 'plain'}"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = _make(directory, sanitizer)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(done.args)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}", pytrace=False)
    return Build(
        sanitizer,
        directory / "plugin" / "libnccl-net-bagua.so",
        directory / "tests" / "drivers" / "drive_net",
        directory / "tests" / "drivers" / "drive_steps",
        directory / "tests" / "conformance" / "drive_contract",
    )


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with no NCCL_* and BAGUA_NET_* but ``settings``; by default on loopback, and without
    what the paths of other tests have learned."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "BAGUA_NET_"))}
    return kept | _SANITIZER_OPTIONS | {"NCCL_SOCKET_IFNAME": "lo", "BAGUA_NET_PATH_MEMORY": "0"} | dict(settings)


def _run(command: Sequence[str], settings: Mapping[str, str], seconds: int) -> dict[str, Any]:
    done = subprocess.run(
        command, env=environment(settings), capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
    lines = done.stdout.splitlines()
    assert len(lines) == 1, f"something else is on stdout: {done.stdout}"
    summary: dict[str, Any] = json.loads(lines[0])
    return summary


def net(built: Build, *options: str, settings: Mapping[str, str] | None = None, seconds: int = 60) -> dict[str, Any]:
    """Runs drive_net and returns its summary; an AssertionError with its output if a byte was wrong."""
    limit = built.seconds(seconds)
    command = [str(built.drive_net), "--lib", str(built.library), "--deadline", str(limit), *options]
    return _run(command, settings or {}, limit + 20)


def contract(
    built: Build, api: int, scenario: str, settings: Mapping[str, str] | None = None, seconds: int = 60
) -> None:
    """Runs one scenario of drive_contract; an AssertionError with its output if it fails."""
    limit = built.seconds(seconds)
    command = [str(built.drive_contract), "--lib", str(built.library), "--api", str(api)]
    summary = _run([*command, "--deadline", str(limit), scenario], settings or {}, limit + 20)
    assert summary == {"scenario": scenario, "api": api}


def contract_list(built: Build) -> dict[str, int]:
    """All scenarios of drive_contract, each with the lowest API version that has the behaviour."""
    command = [str(built.drive_contract), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return {name: int(api) for name, api in map(str.split, done.stdout.splitlines())}
