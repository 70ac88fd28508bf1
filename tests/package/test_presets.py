# SPDX-License-Identifier: MIT
"""Images that preset a plugin: it stays where its hardware is, and the plugin takes its place where it is not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import bagua_net
from bagua_net._activation import presets
from bagua_net._machine import fabrics, rdma
from bagua_net._settings.layers import Setting
from tests.package.sandbox import Sandbox

LIBRARY = str(bagua_net.plugin_path())
SHOW = ["--", "sh", "-c", 'echo "$NCCL_NET_PLUGIN|$NCCL_NET|$NCCL_TUNER_PLUGIN"']
SPCX = {"NCCL_NET_PLUGIN": "spcx"}


def roce(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("mlx5_0", layer="Ethernet")


def efa(sandbox: Sandbox) -> None:
    sandbox.add_rdma_port("rdmap0s6", layer="Unknown")
    device = sandbox.root / "infiniband" / "rdmap0s6" / "device"
    device.mkdir()
    (device / "vendor").write_text("0x1d0f\n")


def slingshot(sandbox: Sandbox) -> None:
    (sandbox.root / "cxi" / "cxi0").mkdir(parents=True)


def gvnics(sandbox: Sandbox, count: int = 5) -> None:
    for number in range(count):
        device = sandbox.root / "pci" / f"0000:00:{number:02x}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1ae0\n")
        (device / "device").write_text("0x0042\n")


#: Each image's setting, and what its hardware looks like.
IMAGES = [
    (SPCX, roce),
    ({"NCCL_NET_PLUGIN": "ibext"}, roce),
    ({"NCCL_NET_PLUGIN": "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"}, roce),
    ({"NCCL_NET_PLUGIN": "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"}, efa),
    ({"NCCL_NET_PLUGIN": "aws-ofi"}, slingshot),
    ({"NCCL_NET": "AWS Libfabric"}, efa),
    ({"NCCL_NET": "gIB"}, roce),
    ({"NCCL_NET": "FasTrak"}, gvnics),
    ({"NCCL_NET": "GPUDirectTCPX_v7"}, gvnics),
    ({"NCCL_NET_PLUGIN": "ofi", "NCCL_NET": "AWS Libfabric"}, efa),
]


@pytest.mark.parametrize(("settings", "hardware"), IMAGES)
def test_run_goes_by_the_hardware(
    sandbox: Sandbox, settings: dict[str, str], hardware: Callable[[Sandbox], None]
) -> None:
    taken = sandbox.run("run", *SHOW, **settings)
    assert taken.stdout == f"{LIBRARY}|BaguaNet|\n", taken.stderr
    lines = taken.stderr.splitlines()
    assert len(lines) == len(settings)
    for line, (name, value) in zip(lines, settings.items(), strict=True):
        assert line.startswith(f"bagua-net: {name}={value} (environment) is a preset of ")
        assert line.endswith("; this machine has none: the plugin takes its place")
    hardware(sandbox)
    left = sandbox.run("run", *SHOW, **settings)
    assert left.stdout == f"{settings.get('NCCL_NET_PLUGIN', '')}|{settings.get('NCCL_NET', '')}|\n"
    (line,) = left.stderr.splitlines()
    assert "it stays, and the plugin is off; to turn it on, use `bagua-net run --force -- COMMAND`" in line
    assert sandbox.run("run", "--force", *SHOW, **settings).stdout == f"{LIBRARY}|BaguaNet|\n"


def test_another_value_is_a_users_choice(sandbox: Sandbox) -> None:
    for settings in ({"NCCL_NET_PLUGIN": "none"}, {"NCCL_NET_PLUGIN": "spcx,mine"}, {**SPCX, "NCCL_NET": "IB"}):
        refused = sandbox.run("run", *SHOW, **settings)
        assert (refused.returncode, "is set already" in refused.stderr) == (1, True)


def test_rdma_that_is_off_is_no_hardware(sandbox: Sandbox) -> None:
    roce(sandbox)
    taken = sandbox.run("run", *SHOW, **SPCX, NCCL_IB_DISABLE="1")
    assert taken.stdout == f"{LIBRARY}|BaguaNet|\n"
    assert "NCCL_IB_DISABLE=1 (environment): NCCL does not use mlx5_0:1: the plugin takes" in taken.stderr


def test_a_few_virtual_cards_are_no_a3(sandbox: Sandbox) -> None:
    gvnics(sandbox, 4)
    assert sandbox.run("run", *SHOW, NCCL_NET="FasTrak").stdout == f"{LIBRARY}|BaguaNet|\n"


def test_the_default_name_is_that_of_the_directory_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma, "SYSFS", tmp_path / "infiniband")
    monkeypatch.setattr(fabrics, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    setting = Setting("NCCL_NET_PLUGIN", "libnccl-net.so", "environment")
    assert presets.find(setting, []) is None
    (tmp_path / "libnccl-net.so").touch()
    assert presets.find(setting, []) is None
    monkeypatch.setattr(presets, "_EVERY", [presets.Preset("X", "Y", (), (str(tmp_path),), (), lambda _: "")])
    assert presets.find(setting, []) is not None


def test_the_tuner_goes_with_its_plugin(sandbox: Sandbox) -> None:
    tuner = "/opt/amazon/ofi-nccl/lib/libnccl-tuner-ofi.so"
    taken = sandbox.run("run", *SHOW, NCCL_NET_PLUGIN="ofi", NCCL_TUNER_PLUGIN=tuner)
    assert taken.stdout == f"{LIBRARY}|BaguaNet|none\n"
    assert f"NCCL_TUNER_PLUGIN={tuner} (environment) is a preset" in taken.stderr
    kept = sandbox.run("run", *SHOW, NCCL_TUNER_PLUGIN="mine.so")
    assert (kept.stdout, kept.stderr) == (f"{LIBRARY}|BaguaNet|mine.so\n", "")
    for_an_image = sandbox.run("enable", NCCL_NET_PLUGIN="ofi", NCCL_TUNER_PLUGIN=tuner).stderr
    assert 'ENV NCCL_TUNER_PLUGIN="none"\n' in for_an_image


@pytest.fixture
def machine(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Sandbox:
    """The sandbox's hardware, for this process."""
    monkeypatch.setattr(rdma, "SYSFS", sandbox.root / "infiniband")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "spcx")
    return sandbox


def test_activate_takes_the_place_and_gives_it_back(machine: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "/opt/hpcx/lib/libnccl-tuner.so")
    before = dict(os.environ)
    with pytest.warns(RuntimeWarning) as warned:
        assert bagua_net.activate()["NCCL_TUNER_PLUGIN"] == "none"
    plugin, tuner = (str(one.message) for one in warned)
    assert plugin.startswith("NCCL_NET_PLUGIN=spcx (environment) is a preset of NVIDIA's NGC images")
    assert plugin.endswith("the plugin takes its place")
    assert tuner.endswith("it is turned off")
    assert bagua_net.status().on
    assert bagua_net.activate() == bagua_net.activate()
    bagua_net.deactivate()
    assert dict(os.environ) == before


def test_activate_leaves_it_where_its_hardware_is(machine: Sandbox) -> None:
    roce(machine)
    before = dict(os.environ)
    with pytest.warns(RuntimeWarning, match=r"mlx5_0:1 \(Ethernet, .*\) is here: it stays.*activate\(force=True\)"):
        assert bagua_net.activate() == {}
    assert dict(os.environ) == before


@pytest.mark.parametrize("layer", ["environment", "file"])
def test_a_job_with_a_secret_does_not_go_without(sandbox: Sandbox, layer: str) -> None:
    """Where the preset stays, NCCL would send in clear."""
    roce(sandbox)
    secret = sandbox.root / "secret"
    secret.touch(0o600)
    secret.write_text("16 bytes or more of it")
    given = {"BAGUA_NET_SECRET_FILE": str(secret)} if layer == "environment" else {}
    if layer == "file":
        sandbox.confs[0].write_text(f"BAGUA_NET_SECRET_FILE={secret}\n")
    done = sandbox.run("run", *SHOW, **SPCX, **given)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the job would send in clear. Unset BAGUA_NET_SECRET_FILE, or use `bagua-net run --force" in done.stderr


@pytest.mark.gate
def test_enable_gives_the_lines_that_make_it_effective(sandbox: Sandbox) -> None:
    tried = sandbox.run("enable", "--dry-run", **SPCX)
    done = sandbox.run("enable", **SPCX)
    assert done.returncode == 0
    assert tried.stderr.splitlines()[2:] == done.stderr.splitlines()[3:]
    assert "enabled" not in done.stderr
    assert "not in effect where NCCL_NET_PLUGIN=spcx is set" in done.stderr
    assert "preset of NVIDIA's NGC images" in done.stderr
    assert f'ENV NCCL_NET_PLUGIN="{sandbox.copy}"\n' in done.stderr
    assert f'- name: NCCL_NET_PLUGIN\n  value: "{sandbox.copy}"\n' in done.stderr
    assert sandbox.run("status", NCCL_NET_PLUGIN=str(sandbox.copy)).returncode == 0


@pytest.mark.gate
def test_status_and_doctor_name_the_image(sandbox: Sandbox) -> None:
    def asked() -> tuple[dict[str, object], dict[str, str]]:
        checks = json.loads(sandbox.run("doctor", "--json", **SPCX).stdout)
        found = json.loads(sandbox.run("status", "--json", **SPCX).stdout)
        return found, next(check for check in checks if check["name"] == "activation")

    found, check = asked()
    assert (found["preset"], found["preset_hardware"]) == ("NVIDIA's NGC images (HPC-X)", None)
    assert (check["verdict"], check["fix"]) == ("warn", "`bagua-net run` and activate() take its place")
    roce(sandbox)
    found, check = asked()
    assert "mlx5_0:1" in str(found["preset_hardware"])
    assert (check["verdict"], "keep it" in check["fact"] + check["fix"]) == ("ok", True)


# ---- RDMA inside, TCP between: a communicator chooses ----


def test_each_communicator_may_choose(sandbox: Sandbox) -> None:
    roce(sandbox)
    ran = sandbox.run("run", "--per-communicator", *SHOW)
    assert (ran.stdout, ran.stderr) == (f"{LIBRARY}||\n", "")
    assert sandbox.run("run", "--per-communicator", "--force", *SHOW, NCCL_NET="IB").stdout == f"{LIBRARY}||\n"
    assert "NCCL_NET=" not in sandbox.run("env", "--per-communicator").stdout
    enabled = sandbox.run("enable", "--per-communicator")
    assert enabled.returncode == 0, enabled.stderr
    assert f"NCCL_NET_PLUGIN={sandbox.copy}\nNCCL_NET_PLUGIN_REF_COUNT=1\n" in sandbox.confs[0].read_text()
    assert sandbox.run("status").returncode == 0
    assert sandbox.run("disable").returncode == 0


def test_a_network_for_all_is_a_conflict_with_a_choice(sandbox: Sandbox) -> None:
    for value in ("BaguaNet", "IB", ""):
        refused = sandbox.run("run", "--per-communicator", *SHOW, NCCL_NET=value)
        assert refused.returncode == 1
        assert f"NCCL_NET={value} (environment) overrides the network of every communicator" in refused.stderr
    for command in ("env", "enable"):
        told = sandbox.run(command, "--per-communicator", NCCL_NET="IB")
        assert "NCCL_NET=IB (environment) overrides the network of every communicator" in told.stderr
    sandbox.run("disable")
    sandbox.confs[0].write_text("NCCL_NET=Socket\n")
    refused = sandbox.run("enable", "--per-communicator", "--force")
    assert refused.returncode == 1
    assert f"{sandbox.confs[0]} has NCCL_NET=Socket" in refused.stderr
    sandbox.confs[0].unlink()
    sandbox.run("enable")
    assert sandbox.run("run", "--per-communicator", *SHOW).returncode == 1


def test_activate_for_a_choice(machine: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NET_PLUGIN", LIBRARY)
    before = dict(os.environ)
    assert "NCCL_NET" not in bagua_net.activate(per_communicator=True)
    assert "NCCL_NET" not in os.environ
    assert bagua_net.activate()["NCCL_NET"] == "BaguaNet"
    monkeypatch.setenv("NCCL_NET", "IB")
    with pytest.raises(bagua_net.ConflictingSetting, match="NCCL_NET=IB"):
        bagua_net.activate(per_communicator=True)
    bagua_net.activate(per_communicator=True, force=True)
    assert "NCCL_NET" not in os.environ
    bagua_net.deactivate()
    assert dict(os.environ) == before | {"NCCL_NET": "IB"}


def test_a_file_may_name_a_network_for_all_communicators(sandbox: Sandbox) -> None:
    assert sandbox.run("enable").returncode == 0
    told = f"NCCL_NET=BaguaNet ({sandbox.confs[0]}) overrides the network of every communicator"
    assert told in sandbox.run("env", "--per-communicator").stderr
    forced = sandbox.run("run", "--per-communicator", "--force", "--", "true")
    assert (forced.returncode, told in forced.stderr) == (1, True)
    assert "overrides" not in sandbox.run("enable", "--per-communicator").stderr  # its own lines are replaced
    sandbox.system_conf.write_text("NCCL_NET=BaguaNet\n")
    assert f"({sandbox.system_conf}) overrides" in sandbox.run("enable", "--per-communicator").stderr
