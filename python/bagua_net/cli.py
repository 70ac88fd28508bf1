# SPDX-License-Identifier: MIT
"""The ``bagua-net`` command."""

from __future__ import annotations

import importlib
import importlib.util

import typer

app = typer.Typer(
    name="bagua-net",
    help="Turn the BaguaNet network of NCCL on and off, check this machine, and measure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Several commands, also while only one is registered."""


if importlib.util.find_spec("bagua_net._bench") is not None:
    importlib.import_module("bagua_net._bench.cli").register(app)


def main() -> None:
    app()
