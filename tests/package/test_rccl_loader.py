# SPDX-License-Identifier: MIT
"""RCCL's own loader, of a release that takes names only (rccl_package.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

import bagua_net
from bagua_net._activation import environment
from bagua_net._nccl import discovery
from tests.package import rccl_package
from tests.package.sandbox import Sandbox

pytestmark = pytest.mark.gate

#: RCCL 2.13.4, of ROCm 5.7.
VERSION = 21304
_ON = b"NCCL_NET_PLUGIN=bagua\nNCCL_NET=BaguaNet\n"


def named_for_rccl(directory: Path) -> str:
    """A directory where the library has the name that RCCL makes of "bagua"."""
    (directory / "librccl-net-bagua.so").symlink_to(bagua_net.plugin_path())
    return str(directory)


def test_it_reads_its_file_and_loads_the_library_by_its_name(tmp_path: Path) -> None:
    (tmp_path / ".rccl.conf").write_bytes(_ON)
    found, log = rccl_package.start(tmp_path, LD_LIBRARY_PATH=named_for_rccl(tmp_path))
    assert found == [f"version {VERSION}", "id 0", "mapped 1"], log
    assert "Plugin name set by env to librccl-net-bagua.so" in log
    assert "Failed to find ncclNetPlugin" not in log


def test_nccls_file_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_bytes(_ON)
    found, log = rccl_package.start(tmp_path, LD_LIBRARY_PATH=named_for_rccl(tmp_path))
    assert found == [f"version {VERSION}", "id 0", "mapped 0"], log


def test_it_makes_a_name_of_a_path(sandbox: Sandbox) -> None:
    """So ``enable`` refuses it. It has read the block: the name is that of the copy, cut at the end of a buffer."""
    assert sandbox.run("enable", "--rccl").returncode == 0
    found, log = rccl_package.start(sandbox.home)
    assert found[-1] == "mapped 0", log
    assert f"librccl-net-{sandbox.copy}.so"[:100] in log
    version = discovery.decode_version(int(found[0].split()[1]))
    assert environment.is_old_rccl(discovery.Nccl(Path("librccl.so.1"), "system", version))
