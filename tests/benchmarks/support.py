# SPDX-License-Identifier: MIT
"""Shared by the tests: what they need, and one of the C files as a library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import ROOT

needs_namespaces = pytest.mark.usefixtures("network_namespaces")


def library(source: str, directory: Path) -> ctypes.CDLL:
    """``source`` built into ``directory``. Skips the test where there is no compiler."""
    compiler = os.environ.get("CC", "cc").split()
    if not shutil.which(compiler[0]):
        pytest.skip(f"needs a C compiler: {source} is C")
    built = directory / f"{source}.so"
    command = [*compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", str(built)]
    done = subprocess.run(
        [*command, str(ROOT / "benchmarks" / "native" / source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(built))
