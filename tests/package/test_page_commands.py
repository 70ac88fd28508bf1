# SPDX-License-Identifier: MIT
"""The shell examples of the users' pages run, line by line as a reader types them.

``bagua-net`` is the real command, on a machine of its own (:mod:`sandbox`). Launchers, pip and git are stubs that write
down whether the plugin was on for them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package import nccl_here
from tests.package.bench_command import free_port
from tests.package.sandbox import Sandbox, sandboxed
from tests.support.tiers import variants

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: .ci/run itself runs the first page's commands, and the other page installs as they do.
_SLOW = [ROOT / "README.md", ROOT / "docs" / "install.md"]
_BLOCK = re.compile(r"^```sh\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
_STUBS = (
    "COMMAND",
    "deepspeed",
    "git",
    "horovodrun",
    "mpirun",
    "pip",
    "python",
    "python3",
    "scontrol",
    "srun",
    "torchrun",
    "pytest",
)
#: What a stub does: its name and whether the plugin is on for it. A command right behind it is run.
_STUB = """#!/bin/sh
echo "$(basename "$0") ${NCCL_NET:-} ${NCCL_NET_PLUGIN:-}" >>"$LAUNCHED"
[ "$(basename "$0") ${1:-}" != "srun bagua-net" ] || exec "$@"
"""
#: The real command. A measurement of full length would show no more.
_COMMAND = """#!/bin/sh
case $1 in bench) set -- "$@" --max 4K --rounds 1 --iters 1 ;; esac
exec {command} "$@"
"""
_SECONDS = 120


def _blocks(page: Path) -> Iterator[str]:
    """Without those that need a second host at the same time."""
    for found in _BLOCK.finditer(page.read_text()):
        if "--rendezvous" not in found["lines"]:
            yield found["lines"]


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell on a machine of its own."""
    sandbox = Sandbox(tmp_path)
    programs, clone = tmp_path / "programs", sandbox.home / "bagua_net"
    for directory in (programs, clone, clone / ".venv" / "bin", sandbox.root / "database-home", sandbox.root / "etc"):
        directory.mkdir(parents=True)
    for name in _STUBS:
        _program(programs / name, _STUB)
    _program(programs / "bagua-net", _COMMAND.format(command=sandboxed(sandbox.root)))
    _program(programs / "sudo", '#!/bin/sh\nexec "$@"\n')
    (clone / ".venv" / "bin" / "activate").touch()
    path = f"{programs}:{os.environ['PATH']}"
    return sandbox.environment(PATH=path, LAUNCHED=str(tmp_path / "launched"), SLURM_JOB_NODELIST="node[0-1]")


def _with_nccl(lines: str, machine: dict[str, str]) -> dict[str, str]:
    """What pip, which is a stub here, would have installed."""
    if "nvidia-nccl" not in lines and "--nccl" not in lines:
        return machine
    return machine | Sandbox(Path(machine["HOME"]).parent).with_nccl(nccl_here.library())


def _shell(lines: str, machine: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clone = Path(machine["HOME"]) / "bagua_net"
    where = clone.parent if "git clone" in lines else clone
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        env=_with_nccl(lines, machine),
        cwd=where,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


@pytest.mark.gate
@pytest.mark.parametrize(
    "page",
    variants(*(page for page in PAGES if page not in _SLOW), nightly=_SLOW),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_shell_examples_run(page: Path, machine: dict[str, str]) -> None:
    for block in _blocks(page):
        done = _shell(block, machine)
        assert done.returncode in (0, 1 if "bagua-net doctor" in block or "bagua-net status" in block else 0), (
            f"{block}\n{done.stdout}{done.stderr}"
        )
        launched = Path(machine["LAUNCHED"])
        said = launched.read_text().splitlines() if launched.exists() else []
        if "bagua-net run --" in block:
            said += done.stdout.splitlines()
            sign = "libnccl-net-bagua" if "--per-communicator" in block else "BaguaNet"
            assert any(re.search(rf"\b{sign}\b", line) for line in said), f"{block}\n{said}"
        launched.unlink(missing_ok=True)


def test_the_two_hosts_of_the_quick_start_meet(machine: dict[str, str]) -> None:
    """Its two commands at the same time, with the address of this host and a port that nothing has: another run of the
    tests may be here."""
    port = free_port()
    text = (ROOT / "docs" / "quickstart.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("bagua-net bench --ranks 2 --rank")]
    assert len(lines) == 2
    hosts = [
        subprocess.Popen(
            ["bash", "-c", line.replace("host0:29600", f"127.0.0.1:{port}")],
            env=machine,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    answers = [host.communicate(timeout=_SECONDS) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], answers
    assert "#wrong" in answers[0][0]
