# SPDX-License-Identifier: MIT
"""The ``bagua-net`` command: its subcommands, and what an error looks like."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import _cli_show, _cli_switch, _version
from ._bench import cli as _bench
from ._errors import BaguaNetError

app = typer.Typer(
    name="bagua-net",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(_version.version())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """NCCL over TCP, as fast as the network allows: turn it on and off, check this machine, measure."""


_cli_switch.register(app)
_cli_show.register(app)
_bench.register(app)


def main() -> None:
    """The entry point. Exit status 2: wrong usage; 1: an error, in one line on stderr."""
    try:
        app(prog_name="bagua-net")
    except (BaguaNetError, OSError) as error:
        print(f"bagua-net: {error}", file=sys.stderr)
        sys.exit(1)
