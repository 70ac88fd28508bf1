# SPDX-License-Identifier: MIT
"""Writes docs/dev/conformance-nccl-faults.md: what NCCL answers to faults, release by release, over both networks.

    python3 -m tests.nccl.fault_table >docs/dev/conformance-nccl-faults.md    # as root, about half an hour on two cores

It provokes each fault in each release, with the plugin and with NCCL's own network in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nccl import faults, nccl_job, releases
from tests.nccl.faults import FAULTS, Finding, Place

#: So long an abort is awaited.
_ABORT_SECONDS = 8.0
_CODES = {
    faults.NOTHING: "none",
    faults.SYSTEM_ERROR: "system error",
    faults.INVALID_USAGE: "invalid usage",
    faults.REMOTE_ERROR: "remote error",
    faults.IN_PROGRESS: "none, in progress",
}
_CLASSES = (1.0, 10.0, 60.0)

_HEAD = f"""\
# What NCCL answers to faults

Real NCCL on [emulated GPUs](emulator.md), each release over the plugin and over its own Socket network: what
`ncclCommGetAsyncError` says on the ranks that are left, how long after the fault, and whether `ncclCommAbort` returns.
`tests/nccl/fault_table.py` wrote this page; `tests/nccl/test_faults.py` asserts what matters in it.

Facts about NCCL, the same over every network:

- **2.18, 2.26 and 2.27 do not report an error of the network.** The job waits until a timeout, such as torch's. The
  plugin's line in the log (`NET/BaguaNet: the connection … broke`) is all there is.
- **From 2.23 to 2.25 an abort does not return** while operations are under way
  ([pytorch#149153](https://github.com/pytorch/pytorch/issues/149153)). Such a process must be killed.
- **2.28 and 2.29 forget the plugin's name** with the last communicator of a process, and the next one fails, or uses
  another network where `NCCL_NET` is not set ([nccl#1978](https://github.com/NVIDIA/nccl/issues/1978)).
  `NCCL_NET_PLUGIN_REF_COUNT=1` prevents it; all that turns the plugin on sets it.
- From 2.28 on, `ncclCommShrink` with `NCCL_SHRINK_ABORT` refuses a communicator that has reported an error of the
  network. It works in 2.27.
- A silent peer is no error. A stopped process goes on where it was; so does a link that comes back, with BaguaNet
  within `BAGUA_NET_KEEPALIVE`.

A cell names NCCL's error and the time from the fault to it, rank by rank, and the time of the abort, or of the destroy
where the calls went on. "None" was watched for two seconds or more, "never" is not within {_ABORT_SECONDS:.0f} s.
Releases with the same answers share a row. What an abort left in the process stands in the last column: sockets and
threads of NCCL's bootstrap, and up to 2.27 what NCCL listened on and never closed.

| fault | releases | BaguaNet: error | abort | Socket: error | abort | left (BaguaNet / Socket) |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Cell:
    """One network's answer, as text."""

    error: str
    end: str
    left: str


def _time(seconds: float) -> str:
    return next((f"< {limit:.0f} s" for limit in _CLASSES if seconds < limit), f"> {_CLASSES[-1]:.0f} s")


def _error(finding: Finding) -> str:
    text = _CODES.get(finding.code, f"code {finding.code}")
    return text if finding.code in (faults.NOTHING, faults.IN_PROGRESS) else f"{text} {_time(finding.seconds)}"


def _end(finding: Finding) -> str:
    if finding.end is None:
        return "never"
    wrong = f", {finding.wrong} wrong" if finding.wrong else ""
    failed = f", code {finding.end}" if finding.end else ""
    return _time(finding.end_seconds) + failed + wrong


def _left(findings: Iterable[Finding]) -> str:
    names = {"socket:": "sockets", "anon_inode:[eventfd]": "eventfd", "anon_inode:[eventpoll]": "epoll"}
    kinds = {names.get(kind, kind) for finding in findings for kind in finding.left}
    return ", ".join(sorted(kinds)) or "–"


def _once(texts: list[str]) -> str:
    """The ranks' texts, or one where they agree."""
    return texts[0] if len(set(texts)) == 1 else "; ".join(texts)


def cell(findings: list[Finding]) -> Cell:
    return Cell(_once([_error(each) for each in findings]), _once([_end(each) for each in findings]), _left(findings))


def _provoke(name: str, version: str, network: str) -> Cell | str:
    """The answer, or the reason why it is missing."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return cell(FAULTS[name](Place(version, network, Path(directory), _ABORT_SECONDS)))
        except pytest.skip.Exception as skipped:
            return str(skipped)
        except AssertionError as failed:
            return str(failed).splitlines()[0]


def rows(name: str, versions: Iterable[str]) -> list[str]:
    """The table's rows of a fault: one for each answer, with the releases that give it."""
    answers: dict[tuple[str, ...], list[str]] = {}
    for version in versions:
        parts: list[str] = []
        left = []
        for network in (nccl_job.BAGUA, nccl_job.SOCKET):
            answer = _provoke(name, version, network)
            print(f"{version} {network} {name}: {answer}", file=sys.stderr, flush=True)
            found = answer if isinstance(answer, Cell) else Cell(answer, "", "")
            parts += [found.error, found.end]
            left.append(found.left)
        answers.setdefault((*parts, _once(left) if left[0] == left[1] else " / ".join(left)), []).append(version)
    texts = []
    for number, (told, those) in enumerate(answers.items()):
        texts.append("| " + " | ".join([name if number == 0 else "", ", ".join(those), *told]) + " |")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        "python3 -m tests.nccl.fault_table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", nargs="+", default=list(releases.ALL), metavar="X.Y.Z", help="releases of NCCL")
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    given = parser.parse_args()
    chosen = [name for name in FAULTS if given.faults in name]
    table = [row for name in chosen for row in rows(name, given.versions)]
    print(_HEAD + "\n".join(table))


if __name__ == "__main__":
    main()
