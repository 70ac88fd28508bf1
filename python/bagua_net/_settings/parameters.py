# SPDX-License-Identifier: MIT
"""The plugin's parameters, as the library itself reads them: the rows of ``plugin/config.def``.

The values are those that a job gets: from the environment, and from the configuration files that its NCCL reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._errors import ParameterInvalid
from .._native import library
from . import layers

#: Names that differ by more letters than these are not taken for misspellings.
_MAX_ERRORS = 3


@dataclass(frozen=True)
class Parameter:
    """One row. Values are written as a user would write them."""

    name: str
    #: "int", "bytes", "string", "ports" or "bool"
    kind: str
    default: str
    #: such as "1 … 64"; "" for a parameter without one
    range: str
    help: str
    #: in force in a job of this environment
    value: str
    #: what is wrong with the given value, in one line; None: it is valid
    error: str | None
    #: whether anything sets it
    set: bool
    #: the given value; None: not set
    given: str | None
    #: its source: "environment", or the path of a configuration file
    layer: str | None


def read(among: layers.Layers | None = None) -> list[Parameter]:
    """Every parameter, with its value in a job of this environment. For one thread at a time.

    Raises:
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
    """
    among = layers.of_a_job() if among is None else among
    lib = library.load()
    with layers.applied(among):
        return [
            _parameter(row, among) for row in library.rows("bnet_param_t", lib.bnet_param_count(), lib.bnet_param_get)
        ]


def _parameter(row: Any, among: layers.Layers) -> Parameter:
    def text(field: str) -> str | None:
        return library.text(getattr(row, field))

    name = text("name") or ""
    setting = layers.effective(name, among)
    return Parameter(
        name=name,
        kind=text("kind") or "",
        default=text("deflt") or "",
        range=text("range") or "",
        help=text("help") or "",
        value=text("value") or "",
        error=text("error"),
        set=setting.layer is not None,
        given=setting.value,
        layer=setting.layer,
    )


def _with_file(sentence: str, layer: str | None) -> str:
    """The sentence, with the file that it concerns in front."""
    return sentence if layer in (None, layers.ENVIRONMENT) else f"{layer}: {sentence}"


def refusals(rows: list[Parameter]) -> list[str]:
    """The library's sentence about each value that it refuses, with the file that sets it."""
    return [_with_file(row.error, row.layer) for row in rows if row.error]


# ---- variables that are no parameters ----


def _distance(one: str, other: str) -> int:
    """Levenshtein's: the number of letters to insert, delete or replace."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, against in enumerate(other, 1):
            diagonal, row[j] = row[j], min(diagonal + (letter != against), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _nearest(name: str, known: Iterable[str]) -> str | None:
    best = min(known, key=lambda row: _distance(name, row))
    return best if _distance(name, best) <= _MAX_ERRORS else None


@dataclass(frozen=True)
class Unknown:
    """A BAGUA_NET_* variable that is not a parameter: misspelt, or of another version."""

    name: str
    layer: str
    #: the parameter that was probably meant; None: no name is close
    meant: str | None

    @property
    def problem(self) -> str:
        return "is not a parameter" + ("" if self.meant else " of this version")

    @property
    def fix(self) -> str:
        return f"did you mean {self.meant}?" if self.meant else "`bagua-net params` lists them"

    @property
    def sentence(self) -> str:
        """The library's own sentence (``bnet_config_unknown``), with the file that sets it in front."""
        return _with_file(f"{self.name} {self.problem}; {self.fix}", self.layer)


def unknown(rows: list[Parameter], among: layers.Layers) -> list[Unknown]:
    """The variables that are no parameters, by name."""
    known = [row.name for row in rows]
    strange = [name for name in layers.of_jobs(among) if name not in known]
    return [Unknown(name, layers.effective(name, among).layer or "", _nearest(name, known)) for name in strange]


def check(among: layers.Layers | None = None) -> list[str]:
    """Would the plugin accept all settings of a job started now?

    Returns:
        a sentence about each variable that is not a parameter.

    Raises:
        ParameterInvalid: the plugin would refuse a value.
        LibraryNotFound, LibraryUnusable: the library is missing or does not load.
    """
    among = layers.of_a_job() if among is None else among
    rows = read(among)
    for refusal in refusals(rows):
        raise ParameterInvalid(refusal)
    return [one.sentence for one in unknown(rows, among)]
