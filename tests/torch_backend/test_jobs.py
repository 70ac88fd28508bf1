# SPDX-License-Identifier: MIT
"""Real jobs over the ``bagua_net`` backend: the scripts of examples/ with their launchers, on one host and on two.

With any backend, training computes the same numbers in the same order, except for the additions in a reduction.
With two ranks that is a sum of two numbers, so the losses must equal gloo's to the last digit; with more ranks, the
scripts themselves check them against TOLERANCE in examples/digits.py.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import jobs_launch
from tests.support.jobs_launch import Command, Host
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_RAY_SECONDS = 300  # its own processes start first
_ONE, _TWO = pytest.param(1, id="one-host"), pytest.param(2, id="two-hosts")


@pytest.fixture(autouse=True)
def _packages() -> None:
    """scikit-learn contains the data set: ``pip install '.[examples]'``."""
    jobs_launch.needs("torch", "sklearn")


# ---- torch's own ----


@pytest.mark.nightly
@pytest.mark.parametrize("count", variants(_TWO, nightly=[_ONE]))
@pytest.mark.parametrize("script", variants("fsdp_digits.py", nightly=["ddp_digits.py"]))
def test_training_is_that_of_gloo(script: str, count: int) -> None:
    with jobs_launch.hosts(count) as hosts:
        printed = jobs_launch.run([jobs_launch.torchrun(host, count, script) for host in hosts])
    losses = jobs_launch.losses(printed)
    assert list(losses) == ["bagua_net", "gloo"], printed
    assert losses["bagua_net"] == losses["gloo"]
    assert jobs_launch.falling(losses["gloo"]), printed
    assert printed.rstrip().endswith("the losses are the same")


@pytest.mark.nightly
@pytest.mark.parametrize(("script", "count", "ranks"), [("ddp_digits.py", 1, 3), ("fsdp_digits.py", 2, 4)])
def test_more_ranks_train_as_gloo_within_the_tolerance(script: str, count: int, ranks: int) -> None:
    """Three ranks cannot share ten rows equally, nor can four, so FSDP2 pads."""
    with jobs_launch.hosts(count) as hosts:
        printed = jobs_launch.run([jobs_launch.torchrun(host, count, script, ranks=ranks) for host in hosts])
    losses = jobs_launch.losses(printed)
    assert list(losses) == ["bagua_net", "gloo"], printed
    assert jobs_launch.falling(losses["bagua_net"]), printed
    assert "the losses " in printed.splitlines()[-1]


@pytest.mark.nightly
def test_a_job_that_activates_the_plugin_trains_without_a_gpu() -> None:
    printed = jobs_launch.run([jobs_launch.torchrun(jobs_launch.HERE, 1, "nccl_digits.py")])
    assert jobs_launch.falling(jobs_launch.losses(printed)["bagua_net"]), printed
    assert printed.endswith("the plugin is on\n")


# ---- frameworks with their own launcher, or their own way to make a process group ----


def _lightning(host: Host, count: int, backend: str) -> Command:
    options = ("--nodes", str(count), "--devices", str(jobs_launch.RANKS // count), "--backend", backend)
    return jobs_launch.by_itself(host, count, "lightning_digits.py", *options)


def _accelerate(host: Host, count: int, backend: str) -> Command:
    return jobs_launch.torchrun(host, count, "accelerate_digits.py", "--backend", backend)


FRAMEWORKS = {"lightning": _lightning, "accelerate": _accelerate}

#: gloo's threads may release the last tensors while Python is shutting down, which aborts the process
#: (pytorch/pytorch#179291). The losses are printed by then.
_ABORTED_BY_GLOO = "terminate called without an active exception"


@functools.cache
def _losses_of_gloo(package: str) -> str:
    """With two ranks; their hosts make no difference to gloo's numbers."""
    printed = jobs_launch.run([FRAMEWORKS[package](jobs_launch.HERE, 1, "gloo")], forgiven=_ABORTED_BY_GLOO)
    return jobs_launch.losses(printed)["gloo"]


@pytest.mark.nightly
@pytest.mark.parametrize("count", [_ONE, _TWO])
@pytest.mark.parametrize("package", FRAMEWORKS)
def test_frameworks_train_as_with_gloo(package: str, count: int) -> None:
    jobs_launch.needs(package)
    with jobs_launch.hosts(count) as hosts:
        printed = jobs_launch.run([FRAMEWORKS[package](host, count, "bagua_net") for host in hosts])
    losses = jobs_launch.losses(printed)
    assert list(losses) == ["bagua_net"], printed
    assert jobs_launch.falling(losses["bagua_net"]), printed
    assert losses["bagua_net"] == _losses_of_gloo(package)


# ---- Ray Train, whose workers are processes of its own ----


@pytest.mark.nightly
def test_ray_trains() -> None:
    jobs_launch.needs("ray")
    command = jobs_launch.by_itself(jobs_launch.HERE, 1, "ray_digits.py")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:  # its sockets' names have at most 107 bytes
        printed = jobs_launch.run([dataclasses.replace(command, settings={"RAY_TMPDIR": short})], _RAY_SECONDS)
    assert jobs_launch.falling(jobs_launch.losses(printed)["bagua_net"]), printed


# ---- DeepSpeed, whose launcher reaches other hosts by pdsh and ssh, and drops most of the environment ----

DEEPSPEED = (sys.executable, "-m", "deepspeed.launcher.runner")
_COMPILE = "from deepspeed.comm.torch import build_shm_op; assert build_shm_op()"
_COMPILE_SECONDS = 340
#: Two jobs may follow it, with limits of their own. pytest includes the time of a test's fixtures.
_NEVER_THAT_LONG = pytest.mark.timeout(_COMPILE_SECONDS + 400)


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Prepares DeepSpeed's ranks. Every job on CPUs first compiles an operation, unless the installation did; if it is
    ended in the middle of that, it leaves a lock on which the next job would wait forever."""
    jobs_launch.needs("deepspeed")
    settings = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("extensions"))}
    jobs_launch.run([Command(jobs_launch.HERE, [sys.executable, "-c", _COMPILE], settings)], _COMPILE_SECONDS)
    return settings


@pytest.fixture(scope="module")
def deepspeed_here(deepspeed: dict[str, str]) -> Callable[[str], str]:
    """The losses with that backend, on one host."""

    @functools.cache
    def train(backend: str) -> str:
        script = jobs_launch.script("deepspeed_digits.py", "--backend", backend)
        command = [*DEEPSPEED, "--num_accelerators", str(jobs_launch.RANKS), *script]
        with jobs_launch.own_host() as host:
            printed = jobs_launch.run([Command(host, command, deepspeed)])
        losses = jobs_launch.losses(printed)
        assert list(losses) == [backend], printed
        return losses[backend]

    return train


@_NEVER_THAT_LONG
def test_deepspeed_on_one_host(deepspeed_here: Callable[[str], str]) -> None:
    assert deepspeed_here("bagua_net") == deepspeed_here("gloo")
    assert jobs_launch.falling(deepspeed_here("gloo"))


# A substitute for ssh: the host is a namespace, and everything after its name is a command for a shell there, which
# gets none of this environment.
SSH = """#!/bin/sh
while getopts 2axTl:o:p:i: option; do :; done
shift $((OPTIND - 1))
case $1 in
{cases}
*) echo "no host $1" >&2; exit 255;;
esac
shift
exec ip netns exec "$space" env -i PATH="$PATH" HOME="$HOME" sh -c "$*"
"""


def _ssh(hosts: list[Host], directory: Path) -> str:
    """A PATH on which that program is ssh."""
    spaces = {host.address: host.space.name for host in hosts if host.space}
    assert len(spaces) == len(hosts)
    cases = "\n".join(f"{address}) space={space};;" for address, space in spaces.items())
    directory.mkdir()
    ssh = directory / "ssh"
    ssh.write_text(SSH.format(cases=cases))
    ssh.chmod(0o755)
    return os.pathsep.join([str(directory), os.environ["PATH"]])


@_NEVER_THAT_LONG
def test_deepspeed_on_two_hosts(
    deepspeed: dict[str, str], deepspeed_here: Callable[[str], str], tmp_path: Path
) -> None:
    """Its launcher runs on neither host and passes on almost no variables: those of the ranks are in .deepspeed_env."""
    if shutil.which("pdsh") is None:
        pytest.skip("DeepSpeed's launcher reaches other hosts by pdsh, which is not installed")
    with jobs_launch.hosts(2) as hosts:
        settings = jobs_launch.environment(hosts[0], deepspeed)
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER", *deepspeed)
        (tmp_path / ".deepspeed_env").write_text("".join(f"{name}={settings[name]}\n" for name in names))
        (tmp_path / "hosts").write_text("".join(f"{host.address} slots=1\n" for host in hosts))
        where = ["--hostfile", str(tmp_path / "hosts"), "--launcher", "pdsh", "--master_addr", hosts[0].address]
        script = jobs_launch.script("deepspeed_digits.py", "--backend", "bagua_net")
        variables = {**deepspeed, "HOME": str(tmp_path), "PATH": _ssh(hosts, tmp_path / "bin")}
        printed = jobs_launch.run([Command(jobs_launch.HERE, [*DEEPSPEED, *where, *script], variables)])
    # pdsh puts the host's name in front of each line.
    losses = jobs_launch.losses(re.sub(r"^\S+: ", "", printed, flags=re.MULTILINE))
    assert losses == {"bagua_net": deepspeed_here("gloo")}, printed
