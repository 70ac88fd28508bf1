# SPDX-License-Identifier: MIT
"""What the command lines of all measurements have in common."""

from __future__ import annotations

import argparse
import datetime
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT


def parser(name: str, summary: str | None) -> argparse.ArgumentParser:
    """Of the measurement ``name``; ``summary``: a docstring, of which the first line is shown."""
    return argparse.ArgumentParser(prog=f"python3 -m benchmarks {name}", description=(summary or "").partition("\n")[0])


def parsed(of: argparse.ArgumentParser, argv: Sequence[str], what: str, **quick: Any) -> argparse.Namespace:
    """``quick``: the defaults with --quick; ``what`` says what that leaves."""
    of.add_argument("--quick", action="store_true", help=what)
    if "--quick" in argv:
        of.set_defaults(**quick)
    return of.parse_args(argv)


def output(arguments: argparse.Namespace, place: str) -> Path:
    """The file of readings: ``--output``, or ``place`` in results/, with today's date for DATE. Its folder is made."""
    results = ROOT / "benchmarks" / "results"
    file: Path = arguments.output or results / place.replace("DATE", datetime.date.today().isoformat())
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def shown(name: str, argv: Sequence[str]) -> str:
    """The command as a results file has it. Only the names of files: their folders on this machine say nothing to a
    reader."""
    words = [Path(word).name if word.startswith(("/", "~")) else word for word in argv]
    return shlex.join(["python3", "-m", "benchmarks", name, *words])
