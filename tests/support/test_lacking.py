# SPDX-License-Identifier: MIT
"""Commands that run as on a machine which lacks something."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import lacking, netns, programs

#: What every environment of the gate has; its first environment has no torch.


def _run(thing: str, *command: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.lacking", thing, "--", *command],
        env=os.environ | {"PYTHONPATH": programs.search_path()},
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=programs.ROOT,
    )


def test_a_hidden_package_is_neither_found_nor_imported() -> None:
    found = "from importlib.util import find_spec as f; print(f('numpy'), f('pytest') is None)"
    assert _run("numpy", sys.executable, "-c", found).stdout == "None False\n"
    done = _run("numpy", sys.executable, "-c", "import numpy")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'numpy'" in done.stderr


def test_there_is_no_compiler() -> None:
    done = _run("compiler", sys.executable, "-c", "import shutil; print(*map(shutil.which, ('cc', 'gcc', 'sh')))")
    assert done.stdout.startswith("None None /")


@pytest.mark.parametrize("thing", ["namespaces", "root"])
def test_there_are_no_namespaces(thing: str) -> None:
    netns.require_unshare()
    assert _run(thing, "unshare", "--net", "true").returncode != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_there_is_no_root() -> None:
    done = _run("root", sys.executable, "-c", "import os; print(os.geteuid(), os.access('.', os.W_OK))")
    assert done.stdout == "1000 True\n"


@pytest.mark.nightly
@pytest.mark.parametrize("thing", lacking.THINGS)
def test_all_tests_can_be_collected_without(thing: str) -> None:
    """.ci/nightly also runs the quick ones."""
    if thing in ("namespaces", "root") and os.geteuid() != 0:
        pytest.skip("needs root, to give it up")
    collect = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--tier", "nightly", "tests"]
    done = _run(thing, sys.executable, *collect, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_thing_is_refused() -> None:
    done = _run("nothing", "true")
    assert done.returncode == 2
    assert all(thing in done.stderr for thing in lacking.THINGS)
