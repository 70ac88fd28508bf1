# SPDX-License-Identifier: MIT
"""The order of tests that take ranks from the pool, in which few ranks have to end for others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

#: Fixtures with a fixed number of ranks; ``ranks`` has it as its parameter.
_NUMBERS = {"two": 2, "four": 4}


def _ranks_of(item: pytest.Item) -> int:
    """The most ranks that a test takes at once, as far as can be said before it runs; else 0."""
    names = getattr(item, "fixturenames", ())
    if "pool" not in names:
        return 0
    callspec = getattr(item, "callspec", None)
    parameter = callspec.params.get("ranks", 0) if callspec else 0
    return max(parameter, *(number for name, number in _NUMBERS.items() if name in names), 0)


def by_ranks(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Within each file by the number of ranks, otherwise as before: ascending in one file, descending in the next, so
    that the last ranks of a file are the first ones of the next."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    descending = False
    for tests in files.values():
        if any(map(_ranks_of, tests)):
            tests.sort(key=_ranks_of, reverse=descending)
            descending = not descending
    return [item for tests in files.values() for item in tests]
