# SPDX-License-Identifier: MIT
"""Runs the ``bagua-net`` command with all of the machine's files below one directory."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import forked

_SECONDS = 60
#: What is said of BAGUA_NET_NSTREAMS=999.
REFUSED = "BAGUA_NET_NSTREAMS=999: not in 0 … 64; unset it or use a value in that range (the default is 0)"

# The command, with the machine's fixed paths moved below a directory. Everything else is real.
_SANDBOXED = """
import sys
from pathlib import Path
from bagua_net._activation import library_copy
from bagua_net._machine import fabrics, rdma
from bagua_net._nccl import discovery
from bagua_net._settings import homes
root = Path(sys.argv.pop(1))
homes.database_home = lambda: root / "database-home"
homes.SYSTEM_CONF = root / "etc" / "nccl.conf"
homes.RCCL_SYSTEM_CONF = root / "etc" / "rccl.conf"
discovery.ROCM = root / "rocm"
library_copy.SYSTEM_DIRECTORY = root / "usr" / "bagua-net"
rdma.SYSFS = root / "infiniband"
fabrics.PCI_DEVICES = root / "pci"
fabrics.SLINGSHOT = root / "cxi"
rdma.DEVICE_FILES = root / "dev" / "infiniband"
from bagua_net.cli import main
main()
"""


def is_setting(name: str) -> bool:
    """Does this variable change what the package does?"""
    ours = name.startswith("BAGUA_NET_") and not name.startswith("BAGUA_NET_TEST_")
    return ours or name.startswith("NCCL_") or name in ("LD_LIBRARY_PATH", "ROCM_PATH", "XDG_DATA_HOME")


#: Nearly all of the command's time is its imports: of what bagua_net.cli needs, and later, of what typer needs for help
#: and, where it has _adapters, to convert arguments.
TEMPLATE = forked.Template(
    "bagua_net.cli",
    "typer.rich_utils",
    "typer._adapters",
    environment=lambda: {name: value for name, value in os.environ.items() if not is_setting(name)},
    free="(BAGUA_NET|NCCL|COMP)_.*|_BAGUA_NET_COMPLETE|COLUMNS|HOME|LOCAL_RANK|PATH|RANK|ROCM_PATH|SHELL|XDG_DATA_HOME",
    quick_end=True,
)


def sandboxed(root: Path) -> str:
    """``bagua-net`` in the sandbox below ``root``, as words of a shell."""
    return shlex.join([sys.executable, "-c", _SANDBOXED, str(root)])


@dataclass(frozen=True)
class Sandbox:
    """A separate machine: two homes, /etc and /sys below one directory."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def confs(self) -> list[Path]:
        """The .nccl.conf of $HOME and of the password database's home."""
        return [self.home / ".nccl.conf", self.root / "database-home" / ".nccl.conf"]

    @property
    def system_conf(self) -> Path:
        return self.root / "etc" / "nccl.conf"

    @property
    def copies(self) -> list[Path]:
        """What these name."""
        return [conf.parent / ".local" / "share" / "bagua-net" / "libnccl-net-bagua.so" for conf in self.confs]

    @property
    def copy(self) -> Path:
        return self.copies[0]

    def environment(self, **settings: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not is_setting(name)}
        return inherited | {"HOME": str(self.home), "COLUMNS": "200"} | settings

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _SANDBOXED, str(self.root), *arguments]

    def start(self, *arguments: str, stdout: int, **settings: str) -> subprocess.Popen[str]:
        """``bagua-net ARGUMENTS`` with these variables set and stdout as given."""
        return subprocess.Popen(
            self._command(*arguments),
            env=self.environment(**settings),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """``bagua-net ARGUMENTS`` with these variables set; waits for its end."""
        with TEMPLATE.popen(
            self._command(*arguments),
            env=self.environment(**settings),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def files(self) -> dict[str, bytes]:
        """Every file in the sandbox, by its path."""
        return {str(path): path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file()}

    def with_nccl(self, library: Path) -> dict[str, str]:
        """Variables that make this library appear as that of an installed nvidia-nccl wheel, in place of an earlier
        one."""
        packages = self.root / "packages"
        directory = packages / "nvidia" / "nccl" / "lib"
        directory.mkdir(parents=True, exist_ok=True)
        for package in (packages / "nvidia", packages / "nvidia" / "nccl"):
            (package / "__init__.py").touch()
        link = directory / "libnccl.so.2"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        return {"PYTHONPATH": os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def add_rdma_port(self, device: str, state: str = "4: ACTIVE", *, port: int = 1, layer: str = "InfiniBand") -> None:
        """An RDMA port as the kernel shows it."""
        directory = self.root / "infiniband" / device / "ports" / str(port)
        directory.mkdir(parents=True)
        (directory / "state").write_text(f"{state}\n")
        (directory / "link_layer").write_text(f"{layer}\n")
        (directory / "rate").write_text("100 Gb/sec (4X EDR)\n")


UNPRIVILEGED = "--bounding-set=-dac_override,-dac_read_search,-fowner"


def as_user(sandbox: Sandbox, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """``bagua-net ARGUMENTS`` as one who may not write everywhere, which root may."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("needs setpriv(1): root may write to every directory")
        prefix = [setpriv, UNPRIVILEGED]
    command = ["sh", "-c", f'exec "$@" {shlex.join(arguments)}', "sh", *prefix, *shlex.split(sandboxed(sandbox.root))]
    environment = sandbox.environment(**settings)
    return subprocess.run(command, env=environment, cwd=sandbox.root, capture_output=True, text=True, timeout=60)
