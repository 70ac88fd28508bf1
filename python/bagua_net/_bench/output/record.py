# SPDX-License-Identifier: MIT
"""The run as JSON: every figure, with all that is needed to measure it again."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..ranks.process import TOKEN_VARIABLE
from ..workload.config import Config
from ..workload.result import Row

#: Raised whenever a field changes its meaning.
FORMAT = 1

_PREFIXES = ("NCCL_", "BAGUA_NET_", "GLOO_")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return ""


def machine() -> dict[str, Any]:
    """The facts of this machine that the figures depend on."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control").strip(),
        "python": platform.python_version(),
    }


def write(
    path: Path,
    *,
    command: list[str],
    config: Config,
    where: str,
    usable: dict[str, str],
    missing: dict[str, str],
    evidence: dict[str, list[str]],
    rows: list[Row],
    summary: list[str],
) -> None:
    """Raises OSError where the file cannot be written."""
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES) and name != TOKEN_VARIABLE
    }
    record = {
        "format": FORMAT,
        "command": command,
        "machine": machine(),
        "environment": environment,
        "config": asdict(config),
        "where": where,
        "transports": usable,
        "not_measured": missing,
        "evidence": evidence,
        "results": [row.to_dict() for row in rows],
        "summary": summary,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
