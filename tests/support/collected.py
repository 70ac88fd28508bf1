# SPDX-License-Identifier: MIT
"""Which tests a tier has."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

import pytest

from tests.support.programs import ROOT

_SECONDS = 300


@functools.cache
def of_tier(tier: str) -> frozenset[str]:
    """The node ids. Skips the test where torch is not installed, without which half of the tests are not collected."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: half of the tests")
    collect = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--tier", tier, "tests"]
    done = subprocess.run([sys.executable, *collect], cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)
