# SPDX-License-Identifier: MIT
"""What NCCL's log proves about a communicator: its network, and the algorithms and protocols that ran.

From 2.20 on, the first rank logs the choice for each collective (NCCL_DEBUG_SUBSYS=TUNING). Before, a communicator only
logs at its start which combinations it may use; where that is a single one, that one ran.
"""

from __future__ import annotations

import re

#: (algorithm, protocol), in the words of NCCL_ALGO and NCCL_PROTO.
Choice = tuple[str, str]

_FIRST_WITH_CHOICES = (2, 20)
_CHOICE = re.compile(r"(?:(?P<function>\w+): )?\d+ Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)")
_HEAD = re.compile(r"Algorithm +\|(?P<names>[A-Za-z |]+)\|")
#: Latency and bandwidth of each combination; a bandwidth of 0: not to be used.
_ROW = re.compile(r"(?P<function>\w+) \|(?P<cells>( +[\d.]+/ *[\d.]+ \|)+)")
_NETWORK = re.compile(r"Using network (?P<name>\S+)")
#: Up to 2.23 the choices are numbers.
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")

#: NCCL's names of the operations that have an algorithm.
FUNCTIONS = {
    "all_reduce": "AllReduce",
    "reduce_scatter": "ReduceScatter",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
}


def network(log: str) -> str:
    """The network's name, "" where the log has none."""
    found = _NETWORK.search(log)
    return found["name"] if found else ""


def choices(log: str) -> dict[str, set[Choice]]:
    """What ran, by NCCL's name of the function; "" where the log does not name it."""
    found: dict[str, set[Choice]] = {}
    for one in _CHOICE.finditer(log):
        choice = _word(one["algorithm"], _ALGORITHMS), _word(one["protocol"], _PROTOCOLS)
        found.setdefault(one["function"] or "", set()).add(choice)
    return found


def allowed(log: str) -> dict[str, set[Choice]]:
    """What the log's last table allows, by NCCL's name of the function. The table may be in pieces."""
    found: dict[str, set[Choice]] = {}
    algorithms: list[str] = []
    for line in log.splitlines():
        head, row = _HEAD.search(line), _ROW.search(line)
        if head:
            algorithms = head["names"].replace("|", " ").split()
            found = {} if algorithms[0] == _ALGORITHMS[0] else found
        elif row and algorithms:
            bandwidths = [float(cell.partition("/")[2]) for cell in row["cells"].split("|")[:-1]]
            pairs = [(algorithm, protocol) for algorithm in algorithms for protocol in _PROTOCOLS]
            usable = {pair for pair, bandwidth in zip(pairs, bandwidths, strict=True) if bandwidth > 0}
            found.setdefault(row["function"], set()).update(usable)
    return found


def ran(version: str, op: str, opened: str, log: str) -> set[Choice]:
    """What NCCL ran for one of :data:`FUNCTIONS`.

    Args:
        opened: the log of the communicator's start.
        log: the log since then, of this operation alone.
    """
    if tuple(map(int, version.split(".")))[:2] < _FIRST_WITH_CHOICES:
        return allowed(opened).get(FUNCTIONS[op], set())
    told = choices(log)
    return told.get(FUNCTIONS[op], set()) | told.get("", set())


def _word(text: str, words: tuple[str, ...]) -> str:
    if text.isdigit():
        return words[int(text)]
    return next((word for word in words if word.upper() == text.upper().replace("_", "")), text)
