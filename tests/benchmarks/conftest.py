# SPDX-License-Identifier: MIT
"""What several files of tests measure with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ROOT


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs in C are, built from the sources as they are now."""
    if not all(map(shutil.which, ("cmake", os.environ.get("CC", "cc").split()[0]))):
        pytest.skip("needs cmake and a C compiler: the loops and the relay are C")
    build = tmp_path_factory.mktemp("build-bench")
    for command in (
        ["cmake", "-S", str(ROOT / "benchmarks"), "-B", str(build)],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def loops(build: Path) -> Path:
    return build / "libtraffic.so"


@pytest.fixture(scope="session")
def relay(build: Path) -> Path:
    return build / "relay"


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The plugin of the package, wherever that is installed."""
    for directory in (str(ROOT / "python"), *sys.path):
        library = Path(directory, "bagua_net", "lib", "libnccl-net-bagua.so")
        if library.is_file():
            return library
    pytest.skip("the plugin was not built: pip install .")
