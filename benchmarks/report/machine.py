# SPDX-License-Identifier: MIT
"""The machine that a table was measured on, and what its neighbours took of it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match.group(1) if match else platform.processor() or platform.machine()


def _memory_gib() -> float:
    match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return round(int(match.group(1)) / (1 << 20), 1) if match else 0.0


def _sysctl(name: str) -> str:
    path = Path("/proc/sys", *name.split("."))
    return " ".join(path.read_text().split()) if path.exists() else ""


def plugin_version(library: Path) -> str:
    """``bnet_version()`` of the plugin; "" where the file is missing."""
    if not library.is_file():
        return ""
    function = ctypes.CDLL(str(library)).bnet_version
    function.restype = ctypes.c_char_p
    return str(function().decode())


def torch_version() -> str:
    """Of the installed torch; "" where none is installed."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def digest(*files: Path) -> str:
    """SHA-256 of files, hexadecimal; "" where one is missing. Tells builds of the same version apart."""
    if not all(file.is_file() for file in files):
        return ""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


#: Number of samples of the core latency, and the seconds between two: asleep, so that the host of a virtual machine may
#: move its processors.
_SAMPLES = 40
_NAP_S = 0.025


def core_latency_ns(loops: Path) -> list[int]:
    """The lowest, median and highest time in ns that a cache line takes from the first of our processors to the second
    and back, over about a second. Empty with one processor, or where it cannot be read. ``loops`` is libtraffic.so.

    Raises:
        AttributeError: the library is of an older build.
    """
    measure = ctypes.CDLL(str(loops)).core_latency_ns
    measure.restype = ctypes.c_double
    samples: list[int] = []
    while len(samples) < _SAMPLES:
        if (ns := measure()) <= 0:
            return []
        samples.append(round(ns))
        time.sleep(_NAP_S)
    samples.sort()
    return [samples[0], samples[_SAMPLES // 2], samples[-1]]


def describe() -> dict[str, Any]:
    """CPU, kernel, and the kernel's TCP settings that matter to a single connection."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": _memory_gib(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "tcp_wmem": _sysctl("net.ipv4.tcp_wmem"),
        "tcp_rmem": _sysctl("net.ipv4.tcp_rmem"),
        "wmem_max": _sysctl("net.core.wmem_max"),  # limits SO_SNDBUF, and so NCCL_SOCKET_SNDBUF
        "python": platform.python_version(),
        "pinning": "none",
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


@dataclass(frozen=True)
class _CpuTimes:
    """Seconds of processor time since some start: of all processes, of this one with its children, and of everything
    including idle."""

    everyone: float
    own: float
    available: float


def _living_children_s(tick_s: float) -> float:
    """Processor time of the children that still run (proc(5)): a relay works for all readings of a cell."""
    spent = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                spent += int(fields[11]) + int(fields[12])
    return spent * tick_s


def _cpu_times() -> _CpuTimes:
    # user nice system idle iowait irq softirq steal, in ticks (proc(5)). Interrupts belong to no process.
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    tick = 1 / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages) + _living_children_s(tick)
    return _CpuTimes(sum(fields[:3]) * tick, own, sum(fields) * tick)


class Neighbours:
    """The share of the processors that other processes take, from now on."""

    def __init__(self) -> None:
        self._before = _cpu_times()

    def share(self) -> float:
        """0 to 1. Call it when no child of a child is left: its time becomes ours when its parent has ended."""
        now = _cpu_times()
        others = now.everyone - self._before.everyone - (now.own - self._before.own)
        return round(max(0.0, others / max(now.available - self._before.available, 0.01)), 3)


def congestion_control() -> str:
    """The kernel's default, which new namespaces inherit."""
    return _sysctl("net.ipv4.tcp_congestion_control")
