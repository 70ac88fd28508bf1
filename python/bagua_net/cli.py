# SPDX-License-Identifier: MIT
"""The ``bagua-net`` command: its subcommands and its error output."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer

from ._cli import bench as _bench
from ._cli import doctor as _doctor
from ._cli import explain as _explain
from ._cli import export as _export
from ._cli import show as _show
from ._cli import streams as _streams
from ._cli import switch as _switch
from ._cli import top as _top
from ._cli import trace as _trace
from ._errors import BaguaNetError
from ._native.version import version as _version

app = typer.Typer(
    name="bagua-net",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(_version())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """NCCL over TCP with several streams: turn it on and off, check this machine, measure."""


_switch.register(app, "Turn it on and off")
_doctor.register(app, "Check")
_show.register(app, "Check")
_top.register(app, "Watch")
_explain.register(app, "Watch")
_trace.register(app, "Watch")
_export.register(app, "Watch")
_bench.register(app, "Measure")

#: The base of all that wrong usage raises; typer exports this subclass of it.
_UsageError: Any = typer.BadParameter.__base__


#: A shell's status for a command that a signal ended is this and the signal's number.
_BY_SIGNAL = 128
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _frame: FrameType | None) -> None:
    for each in _ENDING:  # the first one may come twice, as from `timeout`
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(_BY_SIGNAL + number)


def _end_by_signals() -> None:
    """As by an exception, so that terminals are left as they were, and processes and files are not. Who ignores one of
    them, as `nohup` does, has it ignored. A program that takes this one's place gets the system's way again."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def main() -> None:
    """The entry point. Exit status 2: wrong usage; 1: an error, in one line on stderr; 128 and more: a signal's."""
    _streams.prepare()
    _end_by_signals()
    try:
        sys.exit(app(prog_name="bagua-net", standalone_mode=False))
    except _UsageError as error:
        error.show()  # not in a box, which would break lines at the width of a terminal, also in a log
        sys.exit(error.exit_code)
    except (BaguaNetError, OSError) as error:
        print(f"bagua-net: {error}", file=sys.stderr)
        sys.exit(1)
