# SPDX-License-Identifier: MIT
"""What settings of algorithms may be."""

from __future__ import annotations

from typing import Any


def check_whole(algorithm: str, least: int, **settings: Any) -> None:
    """Raises ValueError: one of these settings is no whole number from ``least`` on."""
    for name, value in settings.items():
        if not isinstance(value, int) or value < least:
            what = f"{algorithm}: {name}={value!r} is not possible"
            raise ValueError(f"bagua_net.algorithms: {what}; give a whole number from {least} on")
