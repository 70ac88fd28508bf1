# SPDX-License-Identifier: MIT
"""Runs a command as on a machine that lacks something which tests need.

    python3 -m tests.support.lacking torch -- pytest -q
    python3 -m tests.support.lacking --list

Packages are hidden from the interpreters that the command starts, NCCL's wheels cannot be downloaded, compilers are not
on PATH, and privileges are given up. As root only, "namespaces" and "root" hide anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Read by every interpreter at its start. A hidden package is neither found nor imported.
_SITE = """\
import importlib.machinery
import os

_hidden = os.environ["BNET_TEST_HIDDEN"].split(",")
_find = importlib.machinery.PathFinder.find_spec


class _Others:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in _hidden else _find(name, path, target)


importlib.machinery.PathFinder.find_spec = _Others.find_spec
"""
_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "c99", "c89")


@dataclass(frozen=True)
class Without:
    """How to hide a thing: variables, and words in front of the command."""

    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()


def _packages(*names: str) -> Callable[[Path], Without]:
    def hide(scratch: Path) -> Without:
        (scratch / "sitecustomize.py").write_text(_SITE)
        path = os.pathsep.join(filter(None, [str(scratch), os.environ.get("PYTHONPATH")]))
        return Without({"BNET_TEST_HIDDEN": ",".join(names), "PYTHONPATH": path})

    return hide


def _wheels(scratch: Path) -> Without:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(scratch), "PIP_CONFIG_FILE": os.devnull}
    return Without({"BAGUA_NET_TEST_WHEELS": str(scratch), **offline})


def _is_compiler(name: str) -> bool:
    plain = name.rstrip("0123456789.-")
    return any(plain == compiler or plain.endswith(f"-{compiler}") for compiler in _COMPILERS)


def _compiler(scratch: Path) -> Without:
    """Links to the other programs instead of each directory on PATH that has a compiler."""
    path = []
    for number, directory in enumerate(map(Path, os.environ["PATH"].split(os.pathsep))):
        programs = list(directory.iterdir()) if directory.is_dir() else []
        if any(_is_compiler(program.name) for program in programs):
            directory = scratch / str(number)
            directory.mkdir()
            for program in programs:
                if not _is_compiler(program.name):
                    (directory / program.name).symlink_to(program)
        path.append(str(directory))
    return Without({"PATH": os.pathsep.join(path)}, ("env", "--unset=CC"))


def _namespaces(_: Path) -> Without:
    dropped = "-sys_admin,-net_admin"
    return Without(prefix=("setpriv", "--bounding-set", dropped, "--inh-caps", dropped))


def _root(_: Path) -> Without:
    """A user of no privileges, to whom everything belongs that belongs to root."""
    return Without(prefix=("unshare", "--user", "--map-user=1000", "--map-group=1000"))


THINGS: Mapping[str, Callable[[Path], Without]] = {
    "torch": _packages("torch"),
    "numpy": _packages("numpy"),
    "lightning": _packages("lightning", "pytorch_lightning"),
    "matplotlib": _packages("matplotlib"),
    "scikit-learn": _packages("sklearn"),
    "nccl": _wheels,
    "compiler": _compiler,
    "namespaces": _namespaces,
    "root": _root,
}


def main(arguments: list[str]) -> int:
    """The status of the command; 2 if there is no such thing to hide."""
    if arguments == ["--list"]:
        print(*THINGS, sep="\n")
        return 0
    if len(arguments) < 3 or arguments[0] not in THINGS or arguments[1] != "--":
        print(f"usage: lacking {{{','.join(THINGS)}}} -- COMMAND ...", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="bagua-net-lacking-") as scratch:
        without = THINGS[arguments[0]](Path(scratch))
        return subprocess.run([*without.prefix, *arguments[2:]], env=os.environ | without.variables).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
