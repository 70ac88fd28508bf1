# SPDX-License-Identifier: MIT
"""What every directory of tests needs: the path to shared helpers, a home, settings of hypothesis, the markers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Directories with modules that tests of other directories import. A module's name is unique among all of them.
HELPERS = ("package", "drivers", "netns", "gpu")
sys.path[:0] = [str(Path(__file__).parent / directory) for directory in HELPERS]

import installed  # noqa: E402

try:
    import hypothesis
except ImportError:
    pass  # tests/gpu also runs on machines that have only pytest
else:
    # How long an example takes depends on the machine. In .ci/run all runs have the same examples.
    hypothesis.settings.register_profile("bagua-net", deadline=None, derandomize="BNET_CI_INSIDE" in os.environ)
    hypothesis.settings.load_profile("bagua-net")


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A separate home: programs that the tests start keep their files there and read none of the user's."""
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
    """Builds under a sanitizer take minutes: their tests run only when selected by name."""
    if "sanitize" in config.getoption("markexpr"):
        return
    wanted = [item for item in items if not item.get_closest_marker("sanitize")]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
