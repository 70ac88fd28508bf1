# SPDX-License-Identifier: MIT
"""Faults, lives, networks and sanitizers take minutes for each release: they run where a release is asked for."""

from __future__ import annotations

import os

import pytest

_BY_HAND = ("test_faults.py", "test_lifecycle.py", "test_networks.py", "test_sanitized.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("BAGUA_NET_TEST_NCCL"):
        return
    for item in items:
        if item.path.name in _BY_HAND:
            item.add_marker(pytest.mark.skip(reason="takes minutes: BAGUA_NET_TEST_NCCL=2.32.3, or all, runs it"))
