# SPDX-License-Identifier: MIT
"""Connections that a process is making: they have no rows yet."""

from __future__ import annotations

import time

from .files import Snapshot
from .limits import number


def count(snapshot: Snapshot) -> int:
    """How many the process is making."""
    return number(snapshot.process, "connecting")


def seconds(snapshot: Snapshot) -> float:
    """How long the oldest one has taken so far, or 0."""
    since_us = number(snapshot.process, "connecting_since_us")
    return max(0.0, time.time() - since_us / 1e6) if since_us else 0.0


def said(snapshot: Snapshot) -> str:
    """A sentence without its end, where some are being made, or none was made; else ""."""
    making = count(snapshot)
    if making:
        are = "1 connection is" if making == 1 else f"{making} connections are"
        return f"{are} being made, for {seconds(snapshot):.0f} s"
    return "" if snapshot.connections else "has no connection yet"
