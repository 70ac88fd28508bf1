# SPDX-License-Identifier: MIT
"""Writes the manual page, bagua-net(1), to stdout: ``python3 docs/man.py >docs/bagua-net.1``.

Commands and options are those of the command line itself, parameters those that `bagua-net params` lists; the
package must be installed or on PYTHONPATH. By its version, typer brings a copy of click or uses an installed one: this
script uses what both have.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from bagua_net.cli import app

_NAME = "bagua-net"

#: What the command line does not say itself. Paragraphs are macros and text of man(7).
_FILES = r"""
.TP
.I ~/.nccl.conf
NCCL's settings of a user.
.B bagua-net enable
writes a marked block into it.
.TP
.I ~/.rccl.conf
The same for RCCL, AMD's NCCL.
.TP
.I /etc/nccl.conf
NCCL's settings of a host, with
.BR \-\-system .
.TP
.I ~/.local/share/bagua\-net
The copy of the library that the block names;
.I $XDG_DATA_HOME/bagua\-net
where that is set.
.TP
.I /usr/local/lib/bagua\-net
The same with
.BR \-\-system .
"""
_EXIT = r"""
0: success. 1: an error, one line on standard error. 2: wrong usage.
.BR status ,
.B doctor
and
.B params
use 1 for their finding, and
.B run
ends with the status of its command.
"""
_SEE_ALSO = r"The documents of the project: its README and the directory docs/."


def _escape(text: str) -> str:
    """Text as man(7) has to see it: no macro at the start of a line, and hyphens that can be searched and copied."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _prose(text: str) -> str:
    """A docstring: paragraphs apart, code without its marks."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n.PP\n".join(re.sub(r"`+", "", _escape(" ".join(one.split()))) for one in paragraphs)


def _metavar(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    name = str(option.name)
    return "FILE" if name.endswith("_file") else max(option.opts, key=len).lstrip("-").upper()


def _default(option: Any) -> str:
    if option.is_flag or option.default is None or option.default == "":
        return ""
    return f" Default: {getattr(option.default, 'value', option.default)}."


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _option(option: Any) -> Iterator[str]:
    names = ", ".join(rf"\fB{_escape(name)}\fP" for name in sorted(option.opts, key=len))
    yield ".TP"
    yield names if option.is_flag else rf"{names} \fI{_escape(_metavar(option))}\fP"
    yield _escape(_sentence(option.help or "") + _default(option))


def _options(parameters: Iterable[Any]) -> Iterator[str]:
    for option in parameters:
        if option.param_type_name == "option" and not getattr(option, "hidden", False):
            yield from _option(option)


def _argument(argument: Any) -> str:
    name = rf"\fI{_escape(argument.metavar)}\fP"
    return f"{name} ..." if argument.nargs != 1 else name if argument.required else f"[{name}]"


def _command(name: str, command: Any) -> Iterator[str]:
    """One command: how it is called, what it does, its options; then its subcommands."""
    arguments = [_argument(one) for one in command.params if one.param_type_name == "argument"]
    # "--" is needed by nothing, but says where the command's own options end.
    arguments = [r"[\fB\-\-\fP]", *arguments] if arguments else []
    yield f".SS {name}"
    yield " ".join([rf"\fB{_escape(_NAME)} {name}\fP", r"[\fIoptions\fP]", *arguments])
    yield ".PP"
    yield _prose(command.help or "")
    yield from _options(command.params)
    for subname, subcommand in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {subname}", subcommand)


def _run(*arguments: str) -> str:
    """What the command prints. It fails where a parameter of this environment is bad, which is no matter here."""
    command = [sys.executable, "-m", "bagua_net", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


def _parameter(row: dict[str, str]) -> Iterator[str]:
    yield ".TP"
    yield rf"\fB{row['name']}\fP"
    about = _sentence(row["help"][0].upper() + row["help"][1:])
    yield _escape(f"{about} Default: {row['default'] or 'empty'}. Range: {row['range']}.")


def page(group: Any) -> str:
    """The manual page of a group of commands."""
    about = _prose(group.help)
    lines = [
        f".\\\" Written by docs/man.py from the command line and the library's parameters: change those.\n"
        f'.TH {_NAME.upper()} 1 "" "bagua_net {_run("--version").strip()}" "User Commands"',
        f".SH NAME\n{_escape(_NAME)} \\- turn the NCCL network plugin BaguaNet on and off, check a host, measure",
        f".SH SYNOPSIS\n\\fB{_escape(_NAME)}\\fP [\\fB\\-\\-version\\fP] \\fIcommand\\fP [\\fIoptions\\fP]",
        f".SH DESCRIPTION\n{about}\n.PP\nEvery command has \\fB\\-\\-help\\fP. "
        f"\\fB{_escape(_NAME)} \\-\\-install\\-completion\\fP sets up completion in the shell that calls it.",
        ".SH COMMANDS",
        *(line for name, command in group.commands.items() for line in _command(name, command)),
        f".SH FILES{_FILES.rstrip()}",
        ".SH ENVIRONMENT",
        "Parameters of the plugin, from the environment or from a file of NCCL. Sizes take the suffixes K, M and G.",
        *(line for row in json.loads(_run("params", "--json")) for line in _parameter(row)),
        f".SH EXIT STATUS{_EXIT.rstrip()}",
        f".SH SEE ALSO\n{_SEE_ALSO}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(typer.main.get_command(app)))
