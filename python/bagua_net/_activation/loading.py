# SPDX-License-Identifier: MIT
"""Does a file with the plugin load on this machine? NCCL ends a job that asks for it otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .._nccl import elf

_LOAD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.bnet_version.restype = ctypes.c_char_p
print(library.bnet_version().decode())
"""
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Loaded:
    """What came of loading it."""

    #: None: it does not load, or that could not be tried
    version: str | None
    #: why it does not, in the dynamic linker's words where they are plain; "": it loads, or that could not be tried
    problem: str = ""
    #: what to do
    remedy: str = ""


def machine_of(path: Path) -> str | None:
    """The processor that the file is for, as ``platform.machine()`` names it; None: it is no library, or absent."""
    try:
        return elf.machine(path)
    except (OSError, ValueError):
        return None


def _why(path: Path, error: str) -> Loaded:
    machine = machine_of(path)
    if machine not in (None, platform.machine()):
        problem = f"it is for {machine}, and this host is {platform.machine()}"
        return Loaded(None, problem, "use `bagua-net run -- COMMAND` on this host")
    if "failed to map segment" in error or "Operation not permitted" in error:
        problem = "nothing may be executed on its file system (noexec)"
        return Loaded(None, problem, "set XDG_DATA_HOME to a directory elsewhere, and `bagua-net enable` again")
    if "Permission denied" in error:
        return Loaded(None, "permission denied", "let this user read it, and enter its directories")
    return Loaded(None, error, "build and install it on this machine, and `bagua-net enable` again")


def load(path: Path) -> Loaded:
    """Loads it in a child process: a library that crashes must not take this one with it."""
    command = [sys.executable, "-S", "-I", "-c", _LOAD, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Loaded(None)  # in a program that has Python inside there is no interpreter to start
    if done.returncode == 0:
        return Loaded(done.stdout.strip())
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return _why(path, lines[-1].removeprefix("OSError: "))
