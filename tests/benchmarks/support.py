# SPDX-License-Identifier: MIT
"""Shared by the tests: what they need, the command, and one of the C files as a library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ROOT
from tests.support.programs import search_path

needs_namespaces = pytest.mark.usefixtures("network_namespaces")


def measure(name: str, *words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python3 -m benchmarks`` with these words, run in ``cwd``."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *words],
        env={**os.environ, "COLUMNS": "200", **environment, "PYTHONPATH": search_path()},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


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
