# SPDX-License-Identifier: MIT
"""NCCL's log of this process, kept in memory and read back: which network it uses, and what it chooses.

Sources: "Using network" and the channels are logged by every release from 2.18 on (src/init.cc), the algorithm and the
protocol of each collective by rank 0 from 2.20 on (src/enqueue.cc).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_INFO = "NCCL INFO "
_WARN = "NCCL WARN "
_NETWORK = re.compile(r"Using network (?P<name>.+)")
_CHANNELS = re.compile(r"\d+ coll channels,.*")
_CHOICE = re.compile(r"Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)")

#: Up to 2.23 the log has numbers, by src/include/nccl_common.h or its predecessors.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


class DebugLog:
    """Where NCCL writes instead of to stdout: memory, which leaves nothing behind. Made by :meth:`start`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0

    @classmethod
    def start(cls) -> DebugLog | None:
        """Sets NCCL's variables; before its first call. None: NCCL_DEBUG is set already, and stays as it is."""
        if os.environ.get("NCCL_DEBUG"):
            return None
        log = cls(os.memfd_create("nccl-log"))
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,TUNING"
        os.environ["NCCL_DEBUG_FILE"] = f"/proc/self/fd/{log._descriptor}"
        return log

    def new_lines(self) -> list[str]:
        """NCCL's INFO lines since the last call, without host, process and thread."""
        read = self._read(self._position)
        self._position += len(read)
        return _marked(_INFO, read)

    def explain(self, error: Exception) -> str:
        """The error's text, with the network's first warning where it lacks that: NCCL's last error often is another's
        consequence."""
        text = str(error)
        warning = next((line for line in _marked(_WARN, self._read(0)) if line.startswith("NET/")), "")
        return text if warning in text else f"{text}, after {warning}"

    def _read(self, position: int) -> bytes:
        parts = []
        while part := os.pread(self._descriptor, 1 << 20, position):
            position += len(part)
            parts.append(part)
        return b"".join(parts)


def _marked(mark: str, text: bytes) -> list[str]:
    """What follows the mark, in each line that has it."""
    lines = text.decode(errors="replace").splitlines()
    return [line.partition(mark)[2].strip() for line in lines if mark in line]


def network(lines: Iterable[str]) -> str | None:
    """The network in use; None: the lines do not say."""
    return next((found["name"] for line in lines if (found := _NETWORK.fullmatch(line))), None)


def channels(lines: Iterable[str]) -> list[str]:
    """The line about the channels, where there is one."""
    return [line for line in lines if _CHANNELS.fullmatch(line)][:1]


def evidence(lines: Iterable[str]) -> list[str]:
    """Those lines that tell the network and the channels, each once."""
    kept = (line for line in lines if _NETWORK.fullmatch(line) or _CHANNELS.fullmatch(line))
    return list(dict.fromkeys(kept))


def _name(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text


def choices(lines: Iterable[str]) -> list[str]:
    """The algorithm and the protocol of the collectives, such as "RING/LL", each once."""
    found = (_CHOICE.search(line) for line in lines)
    texts = (f"{_name(one[1], _ALGORITHMS)}/{_name(one[2], _PROTOCOLS)}" for one in found if one)
    return list(dict.fromkeys(texts))
