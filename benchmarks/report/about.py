# SPDX-License-Identifier: MIT
"""The first line of a file of readings: the run that made it."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import bagua_net
from benchmarks.report import machine


def this_run(program: str, **settings: Any) -> dict[str, Any]:
    """``program``: as it is started from the repository's root."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([program, *sys.argv[1:]]),
        "machine": machine.describe(),
        "settings": {
            "torch": machine.torch_version(),
            "bagua_net": bagua_net.__version__,
            "plugin_sha256": machine.digest(bagua_net.plugin_path()),
            **settings,
        },
    }
