# SPDX-License-Identifier: MIT
"""What every directory of tests needs: a home, the ranks that tests share, settings of hypothesis, tiers and marks."""

from __future__ import annotations

import faulthandler
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import installed, must_run, netns, tiers

if TYPE_CHECKING:
    from tests.support.pool import Pool

#: .ci/run sets it: everything that the tests need is there, "all" or all "without torch".
_MUST_RUN = os.environ.get("BNET_MUST_RUN", "")
#: A test whose limit is so long takes minutes.
_MINUTES_S = 1000
_SEED_BITS = 32
_PROFILES = ("fresh", "fixed", "thorough")


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A separate home: programs that the tests start keep their files there and read none of the user's."""
    made = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(made))
        for name in ("BNET_MUST_RUN", "PYTEST_ADDOPTS"):  # this run's, not those of runs that tests start
            patch.delenv(name, raising=False)
        for name in (
            "GITHUB_ACTIONS",
            "FORCE_COLOR",
            "PY_COLORS",
        ):  # with each of them typer colours what no terminal shows
            patch.delenv(name, raising=False)
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR"):
            patch.delenv(name, raising=False)
        yield made


@pytest.fixture
def network_namespaces() -> None:
    """Skips the test where they are not possible."""
    netns.require()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The ranks that tests share, in all directories that need torch."""
    from tests.support.pool import Pool  # which imports torch

    with Pool() as made:
        yield made


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.register(parser)


def _load_profile(config: pytest.Config) -> None:
    """The examples of property tests: at night others in each run, by a seed that the header names, else the same ones
    always. HYPOTHESIS_PROFILE chooses otherwise. How long an example takes depends on the machine."""
    try:
        import hypothesis
    except ImportError:
        return  # tests/gpu also runs on machines that have only pytest
    hypothesis.settings.register_profile("fresh", deadline=None)
    hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
    usual = "fresh" if tiers.chosen(config) == "nightly" else "fixed"
    profile = os.environ.get("HYPOTHESIS_PROFILE", usual)
    if profile not in _PROFILES:
        raise pytest.UsageError(f"HYPOTHESIS_PROFILE is {profile!r}, and not one of {', '.join(_PROFILES)}")
    hypothesis.settings.load_profile(profile)
    if getattr(config.option, "hypothesis_seed", "") is None and profile != "fixed":
        config.option.hypothesis_seed = str(secrets.randbits(_SEED_BITS))


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    _load_profile(config)
    tiers.declare(config)
    config.addinivalue_line("markers", "xdist_group: tests of one group run in one process, if pytest-xdist runs them")
    if shutil.which("ninja"):  # what has been built stays with its generator
        os.environ.setdefault("CMAKE_GENERATOR", "Ninja")
    problem = installed.problem()
    if problem is not None:
        raise pytest.UsageError(problem)
    config.addinivalue_line(
        "markers", "sanitize: builds the library under a sanitizer and runs it so; only with -m sanitize"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that takes minutes is not shown as one that hangs."""
    if _takes_minutes(item):
        faulthandler.cancel_dump_traceback_later()


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"tier: {tiers.chosen(config)} (--tier; see tests/support/tiers.py)"]
    seed = getattr(config.option, "hypothesis_seed", None)
    return [*lines, f"hypothesis examples: --hypothesis-seed={seed} repeats them"] if seed else lines


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _MUST_RUN and session.exitstatus == pytest.ExitCode.OK and _unexpected_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    tiers.record(config)
    if later := config.stash.get(tiers.LATER, 0):
        reporter.write_line(f"none of these is in this tier, {later} are in a later one: --tier gate, --tier nightly")
    for reason in _unexpected_skips(config) if _MUST_RUN else ():
        reporter.write_line(f"BNET_MUST_RUN={_MUST_RUN}: this may not be skipped here: {reason}", red=True)


def _unexpected_skips(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", ())]
    return must_run.unexpected(reasons, torch=_MUST_RUN != "without torch")


def _takes_minutes(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("timeout")
    return marker is not None and bool(marker.args) and marker.args[0] >= _MINUTES_S


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Builds under a sanitizer take minutes: their tests run only when selected by name."""
    tiers.select(config, items)
    items.sort(key=_takes_minutes, reverse=True)  # others run beside them; at the end nothing would
    for item in items:
        if "pool" in getattr(item, "fixturenames", ()):  # each process would start the same ranks
            item.add_marker(pytest.mark.xdist_group(f"ranks of {item.path.parent.name}"))
    if "sanitize" in config.getoption("markexpr"):
        return
    wanted = [item for item in items if not item.get_closest_marker("sanitize")]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
