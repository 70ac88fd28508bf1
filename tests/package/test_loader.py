# SPDX-License-Identifier: MIT
"""The loaders of three NCCL generations find the library and choose its network (nccl_loader.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.package import nccl_loader
from tests.support import drivers, nccl_wheels
from tests.support.tiers import variants

SECONDS = 60


def choose(version: str, plugin: str, preload: str = "", **settings: str) -> tuple[str, str]:
    """The process's lines and NCCL's log, after a communicator of this NCCL has chosen its network."""
    variables = drivers.environment({"NCCL_NET_PLUGIN": plugin, "NCCL_DEBUG": "INFO"} | settings)
    command = nccl_loader.worker(version, preload)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return nccl_loader.found(done.stdout), done.stdout


def library() -> str:
    return str(drivers.build().library)


@pytest.mark.parametrize("version", variants("2.30.7", gate=["2.21.5"]))
@pytest.mark.parametrize("named", [True, False])
def test_by_its_path(version: str, named: bool) -> None:
    """With NCCL_NET and without: an external network comes before NCCL's own."""
    found, log = choose(version, library(), **({"NCCL_NET": "BaguaNet"} if named else {}))
    assert "result 0" in found, log
    assert "chose BaguaNet 0 1" in found, log
    assert "chose Socket" not in found, log
    assert ("finalize 0" in found) == (version == "2.30.7"), log
    assert "Using network Socket" not in log


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_preloaded_and_by_its_short_name(version: str) -> None:
    """The only way up to 2.20, which takes no path: a loaded library has the SONAME that NCCL asks for."""
    found, log = choose(version, "bagua", library(), NCCL_NET="BaguaNet")
    assert "result 0" in found, log
    assert "chose BaguaNet 0 1" in found, log


@pytest.mark.gate
@pytest.mark.parametrize("version", ["2.18.3"])
def test_by_the_library_path(version: str) -> None:
    found, log = choose(version, "bagua", NCCL_NET="baguanet", LD_LIBRARY_PATH=str(Path(library()).parent))
    assert "chose BaguaNet 0 1" in found, log


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_the_log_says_what_was_loaded(version: str) -> None:
    _, log = choose(version, "bagua", library())
    assert "BaguaNet" in log, log
    assert "NET/BaguaNet" in log, log


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_a_missing_library_is_an_error_where_the_network_is_named(version: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "libnccl-net-bagua.so")
    found, log = choose(version, missing, NCCL_NET="BaguaNet")
    assert "result 5" in found, log  # ncclInvalidUsage
    assert "chose" not in found, log


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_a_library_that_cannot_start_is_an_error_where_the_network_is_named(version: str) -> None:
    found, log = choose(version, "bagua", library(), NCCL_NET="BaguaNet", BAGUA_NET_NSTREAMS="many")
    assert "chose" not in found, log
    assert "result 0" not in found, log
    assert "BAGUA_NET_NSTREAMS" in log, log


@pytest.mark.parametrize("version", nccl_wheels.EACH)
def test_without_the_plugin_nccl_keeps_its_own(version: str) -> None:
    """Shows that the tests above would notice another choice."""
    found, log = choose(version, "" if version == "2.18.3" else "nothing-of-that-name")
    assert "chose Socket 0 1" in found, log
    assert "mapped False" in found, log
