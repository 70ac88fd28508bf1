# SPDX-License-Identifier: MIT
"""What every directory of tests needs: the helpers in tests/python, tests/net and tests/gpu, and the markers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest has put this directory on the path. There, torch/ would pass for torch where that is not installed.
sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]
sys.path.insert(0, str(Path(__file__).parent / "net"))
sys.path.insert(0, str(Path(__file__).parent / "gpu"))
sys.path.insert(0, str(Path(__file__).parent / "python"))

import installed  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of the tests' own: what they start keeps its files there, and reads none of the user's."""
    made = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(made))
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR"):
            patch.delenv(name, raising=False)
        yield made


def pytest_configure(config: pytest.Config) -> None:
    problem = installed.problem()
    if problem is not None:
        raise pytest.UsageError(problem)
    config.addinivalue_line(
        "markers", "sanitize: builds the library under a sanitizer and runs it so; only with -m sanitize"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The sanitizers' builds take minutes, so they wait until somebody asks for them by name."""
    if "sanitize" in config.getoption("markexpr"):
        return
    wanted = [item for item in items if not item.get_closest_marker("sanitize")]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
