# SPDX-License-Identifier: MIT
"""How much memory the bench may take, on machines and in containers of both kinds of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from bagua_net._machine import memory

_MIB = 1 << 20
_MACHINE, _LIMIT = "this machine", "the memory limit of this container or service"
_MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  8192 kB\n"}
_POD = "0::/kubepods/pod7"
_V2 = "sys/fs/cgroup/kubepods"
_V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, memory.Free(8 * _MIB, _MACHINE)),
        ({"proc/self/cgroup": "0::/"}, memory.Free(8 * _MIB, _MACHINE)),
        (
            {
                "proc/self/cgroup": _POD,
                f"{_V2}/pod7/memory.max": "max",
                f"{_V2}/pod7/memory.current": str(_MIB),
                f"{_V2}/memory.max": str(4 * _MIB),
                f"{_V2}/memory.current": str(_MIB),
            },
            memory.Free(3 * _MIB, _LIMIT),
        ),
        (
            {  # files that were read leave when something needs the memory
                "proc/self/cgroup": _POD,
                f"{_V2}/pod7/memory.max": str(4 * _MIB),
                f"{_V2}/pod7/memory.current": str(4 * _MIB),
                f"{_V2}/pod7/memory.stat": f"anon {_MIB}\ninactive_file {2 * _MIB}\nactive_file {_MIB}\n",
            },
            memory.Free(3 * _MIB, _LIMIT),
        ),
        (
            {  # a container's group is at the top of what it sees, whatever its name outside is
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/7\n4:memory:/docker/7\n0::/",
                f"{_V1}/memory.limit_in_bytes": str(3 * _MIB),
                f"{_V1}/memory.usage_in_bytes": str(2 * _MIB),
                f"{_V1}/memory.stat": f"inactive_file 0\ntotal_inactive_file {_MIB}\n",
            },
            memory.Free(2 * _MIB, _LIMIT),
        ),
        (
            {  # the kernel's "no limit"
                "proc/self/cgroup": "4:memory:/",
                f"{_V1}/memory.limit_in_bytes": "9223372036854771712",
                f"{_V1}/memory.usage_in_bytes": str(2 * _MIB),
            },
            memory.Free(8 * _MIB, _MACHINE),
        ),
        (
            {  # more is used than a limit that came later allows
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": str(_MIB),
                "sys/fs/cgroup/memory.current": str(2 * _MIB),
            },
            memory.Free(0, _LIMIT),
        ),
    ],
)
def test_what_is_free(tmp_path: Path, files: dict[str, str], free: memory.Free) -> None:
    for name, text in (_MEMINFO | files).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.free(tmp_path) == free


def test_nothing_is_known(tmp_path: Path) -> None:
    assert memory.free(tmp_path) is None


def test_here() -> None:
    found = memory.free()
    assert found is not None
    assert found.bytes > 0
