# SPDX-License-Identifier: MIT
"""The plugin's parameters, as the library itself reads them: the rows of ``plugin/config.def``."""

from __future__ import annotations

from dataclasses import dataclass

from . import _lib


@dataclass(frozen=True)
class Parameter:
    """One row. Values are written as a user would write them."""

    name: str
    #: "int", "bytes", "string", "ports" or "bool"
    kind: str
    default: str
    #: such as "1 … 64"; "" where there is none
    range: str
    help: str
    #: in force in this environment
    value: str
    #: what is wrong with the environment's value, in one line; None: nothing
    error: str | None
    #: the environment sets it
    set: bool


def read() -> list[Parameter]:
    """Every parameter, with this environment's values.

    Raises:
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
    """
    lib = _lib.load()
    return [
        Parameter(
            name=_lib.text(row.name) or "",
            kind=_lib.text(row.kind) or "",
            default=_lib.text(row.deflt) or "",
            range=_lib.text(row.range) or "",
            help=_lib.text(row.help) or "",
            value=_lib.text(row.value) or "",
            error=_lib.text(row.error),
            set=bool(row.set),
        )
        for row in _lib.rows("bnet_param_t", lib.bnet_param_count(), lib.bnet_param_get)
    ]
