# SPDX-License-Identifier: MIT
"""NVIDIA's nccl-tests over the plugin, where they are installed with Open MPI, which starts their processes."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import launch

PROGRAM = "all_reduce_perf"
#: NCCL treats each rank as a separate host; they share GPU 0. mpirun tells each process its rank.
_EACH = 'export NCCL_HOSTID="bagua-net-test-$OMPI_COMM_WORLD_RANK" NCCL_TESTS_DEVICE=0; exec "$@"'
_WRONG = re.compile(r"# Out of bounds values : (\d+)")
_BANDWIDTH = re.compile(r"# Avg bus bandwidth\s+: ([\d.]+)")


class OutputUnknown(Exception):
    """The program's output has no summary."""


@dataclass(frozen=True)
class Summary:
    """The last lines of the program's output."""

    wrong: int
    bus_bandwidth: float
    """GB/s, mean over sizes."""


def missing() -> str:
    """Why they cannot run here; "": they can."""
    for tool in (PROGRAM, "mpirun"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    program = Path(shutil.which(PROGRAM) or "").read_bytes()
    return "" if b"MPI_Init" in program else f"{PROGRAM} was built without MPI, and starts no second process"


def command(ranks: int) -> list[str]:
    """8 B to 64 MiB, results checked."""
    sizes = ["-b", "8", "-e", "64M", "-f", "8", "-g", "1", "-c", "1", "-n", "5", "-w", "2"]
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    return [*start, "sh", "-c", _EACH, "sh", PROGRAM, *sizes]


def environment(inherited: dict[str, str]) -> dict[str, str]:
    """The same on all ranks."""
    own = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_MNNVL_ENABLE": "0"}
    return {**inherited, **own, **launch.network_variables(plugin=True)}


def parse(output: str) -> Summary:
    """Raises OutputUnknown."""
    wrong, bandwidth = _WRONG.search(output), _BANDWIDTH.search(output)
    if wrong is None or bandwidth is None:
        raise OutputUnknown(output[-2000:])
    return Summary(int(wrong[1]), float(bandwidth[1]))
