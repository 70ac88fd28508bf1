# SPDX-License-Identifier: MIT
"""Shared fixtures: an environment without settings, and the command in a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import bagua_net
from tests.package.sandbox import Sandbox, is_setting


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No NCCL_* and BAGUA_NET_* variables but the test's own, before and after."""
    for name in filter(is_setting, list(os.environ)):
        monkeypatch.delenv(name)
    yield
    bagua_net.deactivate()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    made = Sandbox(tmp_path / "machine")
    for name in ("home", "database-home", "etc", "infiniband"):
        (made.root / name).mkdir(parents=True)
    return made
