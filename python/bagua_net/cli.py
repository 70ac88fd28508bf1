# SPDX-License-Identifier: MIT
"""The ``bagua-net`` command: its subcommands and its error output."""

from __future__ import annotations

import sys
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


def main() -> None:
    """The entry point. Exit status 2: wrong usage; 1: an error, in one line on stderr."""
    _streams.prepare()
    try:
        sys.exit(app(prog_name="bagua-net", standalone_mode=False))
    except _UsageError as error:
        error.show()  # not in a box, which would break lines at the width of a terminal, also in a log
        sys.exit(error.exit_code)
    except (BaguaNetError, OSError) as error:
        print(f"bagua-net: {error}", file=sys.stderr)
        sys.exit(1)
