# SPDX-License-Identifier: MIT
"""A run that must skip nothing (BNET_MUST_RUN, set by .ci/run) fails where a test is skipped that could run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import must_run

_REASON = "BNET_TEST_SKIP"


def test_skips_for_this_reason() -> None:
    if _REASON in os.environ:
        pytest.skip(os.environ[_REASON])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("asked", "reason", "status"),
    [
        ("all", "no patch(1) here", 1),
        ("all", "torch is not installed", 1),
        ("without torch", "torch is not installed", 0),
        ("all", "torch 2.13.0+cpu sees no CUDA device here", 0),
        ("", "no patch(1) here", 0),
    ],
)
def test_a_run_fails_for_a_skip_that_need_not_be(asked: str, reason: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"{__file__}::{test_skips_for_this_reason.__name__}"],
        env={**os.environ, "BNET_MUST_RUN": asked, _REASON: reason, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("may not be skipped here" in done.stdout) is bool(status)


def test_each_reason_is_told_once() -> None:
    assert must_run.unexpected(["a is missing", "b is missing", "a is missing"], torch=True) == [
        "a is missing",
        "b is missing",
    ]
