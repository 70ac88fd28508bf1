# SPDX-License-Identifier: MIT
"""Libraries of several NCCL generations for the tests, from the official wheels.

    @pytest.mark.parametrize("version", nccl_wheels.VERSIONS)
    def test_something(version):
        library = nccl_wheels.library(version)  # a Path; skips the test where the wheel is not available

A wheel is downloaded once and its library kept in ``~/.cache/bagua-net-tests``, or in the directory that
``BAGUA_NET_TEST_WHEELS`` names. It uses wheels that it finds there.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.support.tiers import variants

#: One release of each way to load a plugin: by suffix only, by path, and with a list.
VERSIONS = ("2.18.3", "2.21.5", "2.30.7")
#: A quick run downloads only the last one.
EACH = variants(VERSIONS[-1], gate=VERSIONS[:-1])

_PROJECT = "nvidia-nccl-cu12"
_MEMBER = "nvidia/nccl/lib/libnccl.so.2"
_DOWNLOAD_SECONDS = 300
#: The user's home, with pip's settings: the tests run with another home.
_HOME = Path.home()


def directory() -> Path:
    """Where they are kept."""
    named = os.environ.get("BAGUA_NET_TEST_WHEELS")
    return Path(named) if named else _HOME / ".cache" / "bagua-net-tests"


def _unpack(wheel: Path, target: Path) -> None:
    """Writes to a temporary name first, so that an interrupted run leaves no partial library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, partial.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    partial.replace(target)


def _download(version: str, into: Path) -> Path:
    """The wheel's path. RuntimeError with pip's last line where it is not available."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--dest", str(into)]
    try:
        pip = subprocess.run(
            [*command, f"{_PROJECT}=={version}"],
            env=os.environ | {"HOME": str(_HOME)},
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip took longer than {_DOWNLOAD_SECONDS} s") from None
    wheels = list(into.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise RuntimeError((pip.stderr.strip().splitlines() or ["pip gave no reason"])[-1])
    return wheels[0]


@functools.cache
def _fetch(version: str) -> Path | str:
    """The library, or the reason why it is missing. One attempt per session; parallel sessions wait for each other."""
    kept = directory()
    target = kept / f"nccl-{version}" / "libnccl.so.2"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with (kept / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.is_file():
                return target
            by_hand = sorted(kept.glob(f"nvidia_nccl_cu*-{version}-*.whl"))
            with tempfile.TemporaryDirectory(dir=kept) as scratch:
                _unpack(by_hand[0] if by_hand else _download(version, Path(scratch)), target)
    except (OSError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        return f"{_PROJECT}=={version} cannot be had: {error}"
    return target


def library(version: str) -> Path:
    """libnccl.so.2 of that release. Skips the calling test, with the reason, where it is not available."""
    found = _fetch(version)
    if isinstance(found, str):
        pytest.skip(found)
    return found
