# SPDX-License-Identifier: MIT
"""The variables in the format of each shell and launcher. Pure functions from names and values to text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping

from .._errors import ConflictingSetting

Variables = Mapping[str, str]

_IN_THE_SCRIPT = "use `bagua-net env --format sh` in the job script"
#: All but letters, of any language, digits, and what means nothing to a shell.
_ODD_IN_WORD = re.compile(r"[^\w@%+=:,./^~-]")


def _sh(variables: Variables) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _fish_quote(value: str) -> str:
    """Inside single quotes fish has two escapes: for the quote and for the backslash."""
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"


def _fish(variables: Variables) -> str:
    return "\n".join(f"set -gx {name} {_fish_quote(value)}" for name, value in variables.items())


def _json(variables: Variables) -> str:
    return json.dumps(dict(variables), indent=2)


def _docker(variables: Variables) -> str:
    """Dockerfile: in double quotes, a backslash escapes itself, the quote and the start of a substitution."""
    quoted = {name: re.sub(r'(["\\$])', r"\\\1", value) for name, value in variables.items()}
    return "\n".join(f'ENV {name}="{value}"' for name, value in quoted.items())


def _k8s(variables: Variables) -> str:
    """The ``env`` of a container. A JSON string is a YAML string; ``$(`` would start a reference."""
    lines = ["env:"]
    for name, value in variables.items():
        lines += [f"- name: {name}", f"  value: {json.dumps(value.replace('$(', '$$('))}"]
    return "\n".join(lines)


def _check_word(name: str, value: str, remedy: str) -> None:
    """An option is for ``$(…)``, where a shell splits at blanks, and takes quotes for what they are."""
    odd = _ODD_IN_WORD.search(value)
    if odd:
        raise ConflictingSetting(f"{name}={value} holds {odd[0]!r}, for which $(…) has no escape; {remedy}")


def _slurm(variables: Variables) -> str:
    """An option of srun and sbatch. Slurm splits the list at commas and has no escape for them."""
    for name, value in variables.items():
        if "," in value:
            raise ConflictingSetting(f"{name}={value} holds a comma, where Slurm splits --export; {_IN_THE_SCRIPT}")
        _check_word(name, value, _IN_THE_SCRIPT)
    return ",".join(["--export=ALL", *(f"{name}={value}" for name, value in variables.items())])


def _mpirun(variables: Variables) -> str:
    """Options of Open MPI's mpirun, which forwards only the variables named."""
    for name, value in variables.items():
        _check_word(name, value, f'`eval "$(bagua-net env)"`, and then mpirun -x {" -x ".join(variables)}')
    return " ".join(f"-x {name}={value}" for name, value in variables.items())


def _deepspeed(variables: Variables) -> str:
    """.deepspeed_env: its parser fails on a blank line and on a comment."""
    return "\n".join(f"{name}={value}" for name, value in variables.items())


FORMATS: dict[str, Callable[[Variables], str]] = {
    "sh": _sh,
    "fish": _fish,
    "json": _json,
    "docker": _docker,
    "k8s": _k8s,
    "slurm": _slurm,
    "mpirun": _mpirun,
    "deepspeed": _deepspeed,
}


def render(form: str, variables: Variables) -> str:
    """The text in that form, without a newline at its end.

    Raises:
        ConflictingSetting: a value cannot be written in that form.
    """
    for name, value in variables.items():
        if "\n" in value and form != "json":
            raise ConflictingSetting(f"{name} holds a line break, which the format {form} cannot write; unset it")
    return FORMATS[form](variables)
