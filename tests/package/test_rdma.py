# SPDX-License-Identifier: MIT
"""Which active RDMA ports count: those that NCCL would use."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

import bagua_net
from bagua_net._machine import rdma
from bagua_net._settings import conf
from tests.package.sandbox import Sandbox

#: Settings, and the ports that are left of two cards: mlx5_0 with port 1, mlx5_10 with ports 1 and 2, by NCCL's rules.
HCAS = [
    ("", "mlx5_0:1 mlx5_10:1 mlx5_10:2"),
    (",", "mlx5_0:1 mlx5_10:1 mlx5_10:2"),
    ("mlx5_1", "mlx5_10:1 mlx5_10:2"),
    ("=mlx5_1", ""),
    ("=mlx5_10", "mlx5_10:1 mlx5_10:2"),
    ("mlx5_10:2", "mlx5_10:2"),
    ("mlx5_10:2:0:1", "mlx5_10:2"),
    ("mlx5_10::0", "mlx5_10:1 mlx5_10:2"),
    ("mlx5_10:all", ""),
    ("=mlx5_0:1,mlx5_10:1", "mlx5_0:1 mlx5_10:1"),
    ("^", ""),
    ("^mlx5", ""),
    ("^mlx5_0", "mlx5_10:1 mlx5_10:2"),
    ("^mlx5_10:1", "mlx5_0:1 mlx5_10:2"),
    ("^=mlx5_1", "mlx5_0:1 mlx5_10:1 mlx5_10:2"),
    ("=^mlx5_0", ""),
    (":1", "mlx5_0:1 mlx5_10:1 mlx5_10:2"),
    ("bnxt", ""),
    (" mlx5_0", ""),
]


@pytest.mark.parametrize(("value", "left"), HCAS)
def test_the_cards_that_nccl_is_left(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, value: str, left: str) -> None:
    for device, port in (("mlx5_0", 1), ("mlx5_10", 1), ("mlx5_10", 2)):
        sandbox.add_rdma_port(device, port=port)
    monkeypatch.setattr(rdma, "SYSFS", sandbox.root / "infiniband")
    found = rdma.find([("environment", {"NCCL_IB_HCA": value})])
    assert [f"{port.device}:{port.port}" for port in found.used] == left.split()
    assert len(found.used) + len(found.unused) == 3
    assert all(reason == f"NCCL_IB_HCA={value} (environment)" for _, reason in found.unused)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *[
            (None, 0),
            ("", 0),
            ("0", 0),
            ("1", 1),
            (" 2x", 2),
            ("-1", -1),
            ("0x10", 16),
            ("010", 8),
            ("08", 0),
            ("0x", 0),
        ],
        *[("0x", 0), ("true", 0), ("yes", 0), ("9" * 30, 0)],
    ],
)
def test_numbers_are_those_of_strtoll(value: str | None, number: int) -> None:
    assert conf.number(value) == number


OFF = [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "^mlx5_0"}, {"NCCL_NET": "socket"}]


@pytest.mark.parametrize("settings", OFF)
def test_enable_goes_on_where_nccl_was_told_to_leave_rdma(sandbox: Sandbox, settings: dict[str, str]) -> None:
    sandbox.add_rdma_port("mlx5_0")
    ((name, value),) = settings.items()
    done = sandbox.run("enable", **settings)
    assert done.returncode == 0, done.stderr
    assert f"{name}={value} (environment): NCCL does not use mlx5_0:1" in done.stderr


@pytest.mark.parametrize("place", ["home", "system", "named"])
def test_files_are_read_as_nccl_reads_them(sandbox: Sandbox, place: str) -> None:
    sandbox.add_rdma_port("mlx5_0")
    named = sandbox.root / "job.conf"
    conf_file = {"home": sandbox.confs[0], "system": sandbox.system_conf, "named": named}[place]
    conf_file.parent.mkdir(exist_ok=True)
    conf_file.write_text("NCCL_IB_DISABLE=1\n")
    option = ["--conf", str(named)] if place == "named" else []
    assert sandbox.run("enable", *option, "--dry-run").returncode == 0
    overridden = sandbox.run("enable", *option, "--dry-run", NCCL_IB_DISABLE="0")
    assert (overridden.returncode, "RDMA is up (mlx5_0:1" in overridden.stderr) == (1, True)


def test_one_card_of_two_is_enough_to_refuse(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("mlx5_0")
    sandbox.add_rdma_port("mlx5_1", layer="Ethernet")
    refused = sandbox.run("enable", NCCL_IB_HCA="^mlx5_0")
    assert refused.returncode == 1
    assert "mlx5_1:1" in refused.stderr
    assert "mlx5_0" not in refused.stderr
    assert "NCCL_IB_DISABLE=1" in refused.stderr


def test_a_port_for_a_plugin_alone_does_not_hear_nccls_own_settings(sandbox: Sandbox) -> None:
    """EFA's: the kernel knows no link layer of it, and only its plugin uses it."""
    sandbox.add_rdma_port("rdmap0s6", layer="Unknown")
    assert sandbox.run("enable", "--dry-run", NCCL_IB_DISABLE="1").returncode == 1
    assert sandbox.run("enable", "--dry-run", NCCL_NET="Socket").returncode == 0


@pytest.mark.parametrize("there", [True, False])
def test_a_container_without_the_device_file_has_no_rdma(sandbox: Sandbox, there: bool) -> None:
    sandbox.add_rdma_port("mlx5_0")
    verbs = sandbox.root / "infiniband_verbs" / "uverbs3"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_0\n")
    file = sandbox.root / "dev" / "infiniband" / "uverbs3"
    if there:
        file.parent.mkdir(parents=True)
        file.touch()
    done = sandbox.run("enable", "--dry-run")
    assert done.returncode == (1 if there else 0)
    assert there or f"no {file} here: NCCL does not use mlx5_0:1" in done.stderr


def test_run_says_that_rdma_is_displaced(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("mlx5_0")
    assert re.fullmatch(r"bagua-net: RDMA is up \(mlx5_0:1 .*\n", sandbox.run("run", "true").stderr)
    assert sandbox.run("run", "true", NCCL_IB_DISABLE="1").stderr == ""
    assert sandbox.run("run", "--force", "true").stderr == ""


@pytest.mark.usefixtures("clean_environment")
def test_activate_does_not_warn_of_rdma_that_is_off(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.add_rdma_port("mlx5_0")
    monkeypatch.setattr(rdma, "SYSFS", sandbox.root / "infiniband")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bagua_net.activate()
    bagua_net.deactivate()


@pytest.mark.gate
def test_doctor_says_what_is_so(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("mlx5_0")
    sandbox.add_rdma_port("mlx5_1")

    def found(**settings: str) -> tuple[str, str, str]:
        checks = json.loads(sandbox.run("doctor", "--json", **settings).stdout)
        (one,) = [check for check in checks if check["name"] == "RDMA"]
        return one["verdict"], one["fact"], one["fix"]

    verdict, fact, fix = found()
    assert (verdict, "would displace it: mlx5_0:1" in fact, "leave the plugin off" in fix) == ("warn", True, True)
    off = "NCCL_IB_DISABLE=1 (environment): NCCL does not use mlx5_0:1, mlx5_1:1: nothing is displaced"
    assert found(NCCL_IB_DISABLE="1") == ("ok", off, "")
    verdict, fact, _ = found(NCCL_IB_HCA="^mlx5_0")
    assert verdict == "warn"
    assert fact.endswith("NCCL_IB_HCA=^mlx5_0 (environment): NCCL does not use mlx5_0:1")
    sandbox.run("enable", "--force")
    verdict, fact, fix = found()
    assert (verdict, "displaces it" in fact, "`bagua-net disable`" in fix) == ("warn", True, True)


def test_a_machine_without_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "SYSFS", tmp_path)
    assert rdma.find([]) == rdma.Rdma([], [])
