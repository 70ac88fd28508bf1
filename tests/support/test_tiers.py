# SPDX-License-Identifier: MIT
"""Which tests run in which tier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import programs

_CONFTEST = """
from tests.support import tiers

def pytest_addoption(parser):
    tiers.register(parser)

def pytest_configure(config):
    tiers.declare(config)

def pytest_collection_modifyitems(config, items):
    tiers.select(config, items)

def pytest_terminal_summary(config):
    tiers.record(config)
"""
_GATE_FILE = """
import pytest
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

def test_of_its_file():
    pass

@pytest.mark.quick
@pytest.mark.parametrize("ranks", variants(3, gate=[4], nightly=[2]))
def test_quick(ranks):
    pass

@pytest.mark.nightly
def test_late():
    pass

@pytest.mark.parametrize("ranks", variants(3, nightly=[2]))
def test_values(ranks):
    pass

@pytest.mark.nightly
class TestLate:
    def test_of_its_class(self):
        pass

    @pytest.mark.gate
    def test_earlier(self):
        pass
"""
_QUICK_FILE = """
import pytest
from tests.support.tiers import variants

def test_unmarked():
    pass

@pytest.mark.parametrize(("a", "b"), variants((1, 2), nightly=[(3, 4), pytest.param(5, 6, id="named")]))
def test_tuples(a, b):
    assert b == a + 1

@pytest.fixture(params=variants("here", gate=["there"]))
def place(request):
    return request.param

def test_fixture(place):
    pass
"""
_QUICK = {
    "test_gate.py::test_quick[3]",
    "test_quick.py::test_unmarked",
    "test_quick.py::test_tuples[1-2]",
    "test_quick.py::test_fixture[here]",
}
_GATE = _QUICK | {
    "test_gate.py::test_of_its_file",
    "test_gate.py::test_quick[4]",
    "test_gate.py::test_values[3]",
    "test_gate.py::TestLate::test_earlier",
    "test_quick.py::test_fixture[there]",
}
_NIGHTLY = _GATE | {
    "test_gate.py::test_quick[2]",
    "test_gate.py::test_late",
    "test_gate.py::test_values[2]",
    "test_gate.py::TestLate::test_of_its_class",
    "test_quick.py::test_tuples[3-4]",
    "test_quick.py::test_tuples[named]",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_gate.py").write_text(_GATE_FILE)
    (tmp_path / "test_quick.py").write_text(_QUICK_FILE)
    return tmp_path


def _pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=directory,
        env={"PATH": "", "PYTHONPATH": programs.search_path()},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _collected(directory: Path, *arguments: str) -> set[str]:
    done = _pytest(directory, "--collect-only", *arguments)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), _QUICK),
        (("--tier", "quick"), _QUICK),
        (("--tier", "gate"), _GATE),
        (("--tier", "nightly"), _NIGHTLY),
    ],
    ids=["default", "quick", "gate", "nightly"],
)
def test_a_tier_has_its_tests_and_those_of_the_tiers_before(
    directory: Path, arguments: tuple[str, ...], expected: set[str]
) -> None:
    assert _collected(directory, *arguments) == expected


def test_a_test_that_is_named_runs_in_every_tier(directory: Path) -> None:
    late = "test_gate.py::test_late"
    assert _collected(directory, late) == {late}
    assert _collected(directory, "test_gate.py::test_values") == {f"test_gate.py::test_values[{n}]" for n in (2, 3)}
    assert _collected(directory, "test_gate.py::test_values[2]") == {"test_gate.py::test_values[2]"}
    assert _collected(directory, "test_gate.py::TestLate") == {
        f"test_gate.py::TestLate::{name}" for name in ("test_of_its_class", "test_earlier")
    }


def test_an_option_counts_more_than_a_name(directory: Path) -> None:
    assert _collected(directory, "--tier", "gate", "test_gate.py::test_late") == set()


def test_what_another_run_has_passed_is_left_out(directory: Path) -> None:
    (directory / "test_more.py").write_text("def test_fails():\n    assert False\n")
    passed = directory / "passed"
    assert _pytest(directory, "--record-passed", str(passed)).returncode == 1
    assert set(passed.read_text().splitlines()) == _QUICK
    failed = {"test_more.py::test_fails"}
    assert _collected(directory, "--tier", "gate", "--without-passed", str(passed)) == _GATE - _QUICK | failed
