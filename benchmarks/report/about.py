# SPDX-License-Identifier: MIT
"""The first line of a file of readings: the run that made it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import bagua_net
from benchmarks import command_line
from benchmarks.report import machine


def this_run(name: str, argv: Sequence[str], **settings: Any) -> dict[str, Any]:
    """``name``: of the measurement, ``argv``: the words behind it."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command_line.shown(name, argv),
        "machine": machine.describe(),
        "settings": {
            "torch": machine.torch_version(),
            "bagua_net": bagua_net.__version__,
            "plugin_sha256": machine.digest(bagua_net.plugin_path()),
            **settings,
        },
    }
