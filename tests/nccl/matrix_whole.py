# SPDX-License-Identifier: MIT
"""The whole matrix, by hand: all cells of all releases, networks and numbers of ranks, but only the quick ones of many
ranks. Takes an hour or two on two processors.

    python3 -m tests.nccl.matrix_whole                     # writes docs/dev/conformance-nccl.md
    python3 -m tests.nccl.matrix_whole --versions 2.30.7 --ranks 2 3 --no-write
    python3 -m tests.nccl.matrix_whole --rows FILE        # keeps the rows there, and runs only those that it lacks
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from bagua_net import __version__ as own_version
from tests.nccl import matrix_jobs, nccl_job
from tests.nccl.matrix_cells import QUICK, SETTINGS, WHOLE, Amount, Cell, Setting, refused

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dev" / "conformance-nccl.md"
VERSIONS = (
    "2.18.3",
    "2.19.3",
    "2.21.5",
    "2.22.3",
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.5",
    "2.27.7",
    "2.28.9",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
)
SIZES = (2, 3, 4, 8)
#: So many ranks have only the quick cells.
_MANY = 8
#: For the cells of one operation with one setting.
_SECONDS = 1800.0
_MOST_TEXTS = 20

#: By version, network and number of ranks; or what ended it.
Rows = dict[tuple[str, str, int], matrix_jobs.Row | str]

_TEXT = """\
# Real NCCL over the plugin, cell by cell

A cell is one operation of an unmodified NCCL on [emulated GPUs](emulator.md): a collective or a group of sends and
receives, with an element type, a reduction, a size, a root, an alignment, in place or not, and with the algorithm and
the protocol that NCCL chooses or is told to use. Every byte of every buffer, and of the memory around it, is compared
on every rank. The data is such that results are exact in any order. NCCL's log has to prove that the algorithm and the
protocol ran. The network Socket is NCCL's own, as a control: where it is wrong, the emulation is.

`python3 -m tests.nccl.matrix_whole` writes this page; `pytest --tier nightly tests/nccl` runs a part of the cells with
the oldest release, that of torch and the newest. Last run: {date}, bagua_net {own}, {processors}; rows that
`--rows` kept are of earlier runs.

## Cells

Each entry: cells, wrong ones, seconds. {many} ranks have fewer sizes. With {striped} ranks the plugin cuts messages for
{streams} streams from the start, otherwise as it adds streams. The ranks share the processors, so the seconds do not
compare networks.

{cells}

"Once" are cells with LL128 that were wrong once, and right in every repetition. NCCL polls the last bytes of a line of
128 while the network writes it, so the bytes have to become visible in their order. Linux copies what a socket has
received with the processor's string instruction, which does not guarantee that on processors with fast short copies
(`fsrm` in `/proc/cpuinfo`). By itself NCCL chooses LL128 only for a network as near to the GPU as a PCIe switch.

## What ran

The combinations of algorithm and protocol that NCCL's log names, over all rows.

{ran}

## Cells that do not exist

{absent}
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entry(row: matrix_jobs.Row | str | None) -> str:
    if row is None:
        return "–"
    if isinstance(row, str):
        return row
    once = f", {len(row.once)} once" if row.once else ""
    return f"{row.cells}, {len(row.wrong)} wrong{once}, {row.seconds:.0f} s"


def _run(version: str, network: str, size: int, amount: Amount) -> matrix_jobs.Row | str:
    """The row, or what ended it."""
    with tempfile.TemporaryDirectory(prefix="bagua-net-matrix-") as directory:
        try:
            row = matrix_jobs.run(version, network, size, amount, Path(directory), seconds=_SECONDS)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return f"failed: {str(error).splitlines()[0].rpartition(': ')[2]}"
    print(f"{version} {network} {size}: {_entry(row)}", *row.wrong[:_MOST_TEXTS], *row.once, sep="\n  ", flush=True)
    return row


# ---- kept rows ----


def _load(path: Path | None) -> Rows:
    if path is None or not path.exists():
        return {}
    rows = [matrix_jobs.Row(**fields) for fields in map(json.loads, path.read_text().splitlines())]
    for row in rows:
        row.ran = {op: {(algorithm, protocol) for algorithm, protocol in choices} for op, choices in row.ran.items()}
    return {(row.version, row.network, row.size): row for row in rows}


def _keep(path: Path | None, row: matrix_jobs.Row | str) -> None:
    if path is None or isinstance(row, str):
        return
    fields = asdict(row) | {"ran": {op: sorted(choices) for op, choices in row.ran.items()}}
    with path.open("a") as kept:
        print(json.dumps(fields), file=kept)


# ---- the page ----


def _cells(rows: Rows) -> str:
    sizes = sorted({size for _, _, size in rows})
    named = list(dict.fromkeys((version, network) for version, network, _ in rows))
    return _table(
        ["NCCL", "network", *(f"{size} ranks" for size in sizes)],
        (
            [version, nccl_job.NAMES[network], *(_entry(rows.get((version, network, size))) for size in sizes)]
            for version, network in named
        ),
    )


def _ran(rows: Iterable[matrix_jobs.Row | str]) -> str:
    ran: dict[str, set[str]] = {}
    for row in rows:
        if isinstance(row, matrix_jobs.Row):
            for op, choices in row.ran.items():
                ran.setdefault(op, set()).update("/".join(choice) for choice in choices)
    return _table(["operation", "ran"], ([f"`{op}`", ", ".join(sorted(found))] for op, found in ran.items()))


def _absent(versions: Sequence[str]) -> str:
    reasons: dict[str, list[str]] = {}
    examples: dict[str, tuple[Setting, Cell]] = {}
    for version in versions:
        for reason, example in refused(version, 2).items():
            reasons.setdefault(reason, []).append(version)
            examples.setdefault(reason, example)
    return _table(
        ["reason", "releases", "for example"],
        (
            [reason, f"{those[0]} to {those[-1]}" if len(those) > 1 else those[0], _example(*examples[reason])]
            for reason, those in reasons.items()
        ),
    )


def _example(setting: Setting, cell: Cell) -> str:
    told = f" with {setting.name}" if setting != SETTINGS[0] else ""
    return f"{cell.op} {cell.dtype} {cell.reduction}".rstrip() + told


def _processors() -> str:
    names = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return f"{len(names)} × {names[0]}" if names else platform.machine()


def _page(rows: Rows) -> str:
    return _TEXT.format(
        date=datetime.date.today(),
        own=own_version,
        processors=_processors(),
        many=_MANY,
        striped=matrix_jobs.STRIPED,
        streams=matrix_jobs.STREAMS,
        cells=_cells(rows),
        ran=_ran(rows.values()),
        absent=_absent(list(dict.fromkeys(version for version, _, _ in rows))),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        "python3 -m tests.nccl.matrix_whole", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), metavar="X.Y.Z", help="releases of NCCL")
    parser.add_argument("--networks", nargs="+", default=list(nccl_job.NETWORKS), choices=nccl_job.NETWORKS)
    parser.add_argument("--ranks", nargs="+", type=int, default=list(SIZES), metavar="N", help="numbers of ranks")
    parser.add_argument("--quick", action="store_true", help="only the cells that pytest runs")
    parser.add_argument("--no-write", action="store_true", help=f"leave {PAGE.name} as it is")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows are kept, and not run again")
    told = parser.parse_args()
    kept = _load(told.rows)
    rows: Rows = {}
    for version, network, size in itertools.product(told.versions, told.networks, told.ranks):
        row = kept.get((version, network, size))
        if row is None:
            row = _run(version, network, size, QUICK if told.quick or size >= _MANY else WHOLE)
            _keep(told.rows, row)
        rows[version, network, size] = row
        if not told.no_write:
            PAGE.write_text(_page(rows))
    return int(any(isinstance(row, str) or row.wrong for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
