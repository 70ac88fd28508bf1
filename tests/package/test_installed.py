# SPDX-License-Identifier: MIT
"""A package that differs from the sources is noticed before any test runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import ROOT, SOURCES, differing


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources, as after an installation."""
    return Path(shutil.copytree(SOURCES, tmp_path / "bagua_net", ignore=shutil.ignore_patterns("__pycache__", "lib")))


def test_a_fresh_installation_is_like_the_sources(package: Path) -> None:
    assert differing(package) == []


def test_every_kind_of_difference_is_seen(package: Path) -> None:
    (package / "_errors.py").unlink()
    (package / "_gone.py").touch()
    with (package / "_bench" / "run.py").open("a") as file:
        file.write("\n")
    assert differing(package) == [str(Path("_bench", "run.py")), "_errors.py", "_gone.py"]


def test_the_source_tree_itself_is_never_older(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(SOURCES)
    assert differing(tmp_path / "link") == []


def test_pytest_refuses_an_old_package_in_one_line(package: Path) -> None:
    (package / "_errors.py").unlink()
    # The finders of an editable installation come before sys.path, so this finder goes before them.
    run = (
        "import sys, pytest; from importlib.machinery import PathFinder; sys.meta_path.insert(0, PathFinder)\n"
        "sys.path.insert(0, sys.argv[1]); sys.exit(pytest.main(['--collect-only', '-p', 'no:cacheprovider', 'tests']))"
    )
    command = [sys.executable, "-c", run, str(package.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert done.stderr.strip().splitlines() == [
        "ERROR: the installed bagua_net differs from the sources: python3 -m pip install '.[test]' again"
    ]
