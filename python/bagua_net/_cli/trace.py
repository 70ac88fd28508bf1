# SPDX-License-Identifier: MIT
"""``bagua-net trace``: what a running process sends and receives, slice by slice, as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from .._errors import BaguaNetError
from .._stats import causes, files, traces
from .._stats.files import Snapshot
from .._stats.limits import number

_SECONDS = 2


def _listed(found: Iterable[Snapshot]) -> str:
    return ", ".join(f"{files.name_of(each)} on {each.process.get('host', '')}" for each in found)


def _find(pid: int | None, rank: str | None) -> Snapshot:
    found = [each for each in files.read_all(files.directory()) if each.lives]
    if not found:
        raise BaguaNetError(files.nothing())
    of_rank = [each for each in found if rank in (None, each.process["rank"])]
    fitting = [each for each in of_rank if pid in (None, number(each.process, "pid"))]
    if not fitting:
        which = f"process {pid}" if pid is not None else "no process"
        of = f" of rank {rank}" if rank is not None else ""
        raise BaguaNetError(f"{which}{of} shows no connections; `bagua-net top` lists those that do")
    if len(fitting) > 1:
        raise BaguaNetError(f"there are several processes: {_listed(fitting)}; name one by its PID, --rank, or both")
    return fitting[0]


def _said(trace: traces.Trace, path: Path) -> str:
    slices = [event for event in trace.events if event.is_slice]
    sent, received = (sum(event.bytes for event in slices if event.sender is sends) for sends in (True, False))
    text = (
        f"{path}: {(trace.end_us - trace.began_us) / 1e6:.1f} s, {len(slices)} slices, {causes.size(sent)} sent, "
        f"{causes.size(received)} received. Open it at https://ui.perfetto.dev"
    )
    if trace.dropped:
        text += f". {trace.dropped} later events found no room: record fewer seconds"
    if trace.lost:
        text += f". {trace.lost} events are lost: the file system of the process's counters is full"
    return text


@contextmanager
def _kept_until_written(path: Path) -> Iterator[TextIO]:
    """Open before the recording, so that it fails before. If that fails, what an earlier one has written is there."""
    try:
        with path.open("a", encoding="utf-8") as file:
            yield file
    finally:
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()


def register(app: typer.Typer, panel: str) -> None:
    @app.command(rich_help_panel=panel)
    def trace(
        pid: Annotated[
            int | None, typer.Argument(metavar="[PID]", help="The process. Default: the only one that there is.")
        ] = None,
        rank: Annotated[
            str | None,
            typer.Option(metavar="N", help="Of this rank, as where containers have processes of the same PID."),
        ] = None,
        seconds: Annotated[
            int, typer.Option(min=1, max=traces.MOST_SECONDS, metavar="N", help="How long to record.")
        ] = _SECONDS,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the recording.")
        ] = Path("bagua-net-trace.json"),
    ) -> None:
        """Record what a running process sends and receives: a track for each stream, and messages.

        The file is for https://ui.perfetto.dev, which shows it without sending it anywhere, or for chrome://tracing. A
        slice lasts from its first byte, written to the kernel or read from it, to its last one; a message from its
        post until it is done. Messages that were posted before, or are not done at the end, are not shown: `bagua-net
        explain` tells what hangs. The process keeps up to 262,144 events.
        """
        process = _find(pid, rank)
        with _kept_until_written(output) as file:
            recorded = traces.record(process, seconds)
            file.truncate(0)
            json.dump(traces.as_json(recorded), file, ensure_ascii=False)  # Perfetto shows escapes as they are
        print(_said(recorded, output), file=sys.stderr)
