# SPDX-License-Identifier: MIT
"""For the tests: what they need and where there is none; one of this directory's files in C as a library of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft"))), reason="needs root, iproute2 and nftables"
)


def library(source: str, directory: Path) -> ctypes.CDLL:
    """``source`` as it is now, built into ``directory``. The test is skipped where there is no compiler."""
    compiler = os.environ.get("CC", "cc").split()
    if not shutil.which(compiler[0]):
        pytest.skip(f"needs a C compiler: {source} is C")
    built = directory / f"{source}.so"
    command = [*compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", str(built)]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(source))], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(built))
