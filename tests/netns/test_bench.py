# SPDX-License-Identifier: MIT
"""bagua-net bench between two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import drivers, jobs_launch

pytestmark = pytest.mark.gate


_BIND = 'mount --bind "$0" /etc/hosts && exec "$@"'


def test_the_hosts_own_name_is_on_loopback(tmp_path: Path) -> None:
    """As in /etc/hosts of Debian and Ubuntu. Rank 0 meets itself there, and other hosts know its address."""
    jobs_launch.needs("torch")
    command = [sys.executable, "-m", "bagua_net", "bench", "--transport", "gloo", "--timeout", "60"]
    command += ["--min", "4K", "--max", "4K", "--iters", "1", "--rounds", "1", "--ranks", "2"]
    command += ["--rendezvous", "node0:29600"]
    inherited = drivers.environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    environment = {name: value for name, value in inherited.items() if not name.endswith("_SOCKET_IFNAME")}
    with jobs_launch.hosts(2) as hosts:
        ranks = []
        for host, address in zip(hosts, ("127.0.1.1", hosts[0].address), strict=True):
            names = tmp_path / f"hosts{host.number}"
            names.write_text(f"127.0.0.1 localhost\n{address} node0\n")
            inside = ["unshare", "--mount", "sh", "-c", _BIND, str(names), *command, "--rank", str(host.number)]
            ranks.append(
                subprocess.Popen(
                    [*host.prefix, *inside],
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        printed = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(printed)
    assert "gloo" in printed[0]
