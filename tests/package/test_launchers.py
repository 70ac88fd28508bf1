# SPDX-License-Identifier: MIT
"""``bagua-net run -- LAUNCHER … WORKER``: with the environment that a launcher passes on, NCCL chooses the plugin.

The launchers are the real ones, where they are installed; the worker is NCCL (nccl_loader.py). Bagua's launcher does
not start without its compiled core, and Horovod does not install without its own: the test makes their changes to the
environment itself.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.package import nccl_loader
from tests.package.sandbox import Sandbox
from tests.support import nccl_wheels
from tests.support.tiers import variants

#: Each launcher's arguments for one process that is not a Python script; the worker's command follows.
LAUNCHERS = {
    "torch": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--no-python"],
    "accelerate": ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--no_python"],
    "deepspeed": [
        *("-m", "deepspeed.launcher.runner", "--num_accelerators", "1"),
        *("--no_python", "--no_local_rank"),
    ],
}

#: Horovod 0.28.1 starts a worker on another host by ssh, which passes on no environment: most of its own variables, and
#: those of the worker's slot, are in front of the command (horovod/runner/gloo_run.py).
HOROVOD = """
import os, shlex, subprocess, sys
left_out = ("BASH_FUNC_", "OLDPWD", "CUDA_VISIBLE_DEVICES")
settings = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
settings |= {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_CONTROLLER": "gloo", "NCCL_SOCKET_IFNAME": "lo"}
line = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
line += [shlex.quote(word) for word in sys.argv[1:]]
sys.exit(subprocess.call(["env", "-i", "sh", "-c", " ".join(line)]))
"""


def _choice(sandbox: Sandbox, version: str, *launcher: str) -> str:
    command = [*launcher, *nccl_loader.worker(version)]
    settings = sandbox.with_nccl(nccl_wheels.library(version))
    done = sandbox.run("run", "--", *command, NCCL_SOCKET_IFNAME="lo", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return nccl_loader.found(done.stdout)


@pytest.mark.gate
@pytest.mark.parametrize("version", variants("2.30.7", nightly=["2.18.3"]))
@pytest.mark.parametrize("package", LAUNCHERS)
def test_launchers_of_today(sandbox: Sandbox, package: str, version: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    assert "chose BaguaNet 0 1" in _choice(sandbox, version, sys.executable, *LAUNCHERS[package])


@pytest.mark.parametrize("version", variants("2.30.7", gate=["2.18.3"]))
def test_what_horovod_takes_to_other_hosts(sandbox: Sandbox, version: str) -> None:
    assert "chose BaguaNet 0 1" in _choice(sandbox, version, sys.executable, "-c", HOROVOD)


@pytest.mark.parametrize("version", variants("2.30.7", gate=["2.18.3"]))
def test_the_library_that_bagua_puts_into_the_library_path(sandbox: Sandbox, version: str, tmp_path: Path) -> None:
    """``--enable_bagua_net`` puts the directory of its libnccl-net.so first, NCCL's default plugin."""
    (tmp_path / "libnccl-net.so").write_bytes(b"whoever opens this fails")
    put_first = 'LD_LIBRARY_PATH="$0:$LD_LIBRARY_PATH" exec "$@"'
    assert "chose BaguaNet 0 1" in _choice(sandbox, version, "sh", "-c", put_first, str(tmp_path))
