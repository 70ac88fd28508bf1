# SPDX-License-Identifier: MIT
"""Options whose value may be left out, which typer does not offer."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

#: Option → its value where none is given.
_DEFAULTS = {"--nccl": "auto"}


def filled(arguments: list[str]) -> list[str]:
    """The arguments, with the default after each such option that another option, or nothing, follows.

    Raises:
        typer.BadParameter: the value is there and empty, as that of an unset shell variable.
    """
    found = []
    for at, argument in enumerate(arguments):
        found.append(argument)
        name, equals, value = argument.partition("=")
        if name in _DEFAULTS and (not value if equals else arguments[at + 1 : at + 2] == [""]):
            raise typer.BadParameter(f"{name} was given an empty value; name a file, or leave the value out")
        if argument in _DEFAULTS and all(following.startswith("-") for following in arguments[at + 1 : at + 2]):
            found.append(_DEFAULTS[argument])
    return found


class OptionalValueCommand(TyperCommand):
    """A command that has such an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, filled(args))
