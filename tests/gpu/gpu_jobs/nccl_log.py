# SPDX-License-Identifier: MIT
"""Facts about a rank in NCCL's log (NCCL_DEBUG=INFO, subsystems INIT, NET and TUNING): NCCL 2.18 to 2.30."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NETWORK = re.compile(r"Using network (\S+)")
_PLUGIN = re.compile(r"NET/BaguaNet: version (\S+), net API v(\d+)")
_CONNECTION = re.compile(r"Channel \d+(?:/\d+)? : .* via (?:NET/([^/\s]+)|(\w+))")
_CHOICE = re.compile(r"(\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")
_SPLIT = re.compile(r"parent 0x[0-9a-f]+ splitCount \d+ .*Init START")


@dataclass(frozen=True)
class NcclLog:
    version: str
    """"2.30.7"; "" where the log has none: only one rank says it."""
    networks: frozenset[str]
    """Those that communicators use, by name."""
    plugin: str
    """"0.1.0 by net API v12"; "" where the plugin did not start."""
    connections: Counter[str]
    """Channels by what carries them: the network's name, "P2P" or "SHM"."""
    choices: frozenset[tuple[str, str]]
    """(algorithm, protocol) of the collectives, in capitals; only a communicator's first rank says it, from 2.24 on."""
    splits: int
    """Communicators made by ncclCommSplit."""
    warnings: tuple[str, ...]


def parse(text: str) -> NcclLog:
    version = _VERSION.search(text)
    plugin = _PLUGIN.search(text)
    return NcclLog(
        version=version[1] if version else "",
        networks=frozenset(_NETWORK.findall(text)),
        plugin=f"{plugin[1]} by net API v{plugin[2]}" if plugin else "",
        connections=Counter(network or other for network, other in _CONNECTION.findall(text)),
        choices=frozenset((algo.upper(), proto.upper()) for _, algo, proto in _CHOICE.findall(text)),
        splits=len(_SPLIT.findall(text)),
        warnings=tuple(line for line in text.splitlines() if " NCCL WARN " in line),
    )


def read(path: Path) -> NcclLog:
    """Reads a file; a missing one, as where NCCL did not run, counts as empty."""
    return parse(path.read_text(errors="replace") if path.exists() else "")
