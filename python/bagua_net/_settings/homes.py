# SPDX-License-Identifier: MIT
"""The configuration files that NCCL reads, in its order; they depend on its version (see ``_nccl.discovery``)."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from .._nccl import discovery

SYSTEM_CONF = Path("/etc/nccl.conf")
USER_CONF_NAME = ".nccl.conf"

#: An unknown version counts as this one.
_CURRENT = discovery.FIRST_WITH_HOME_VARIABLE


def variable_home() -> Path | None:
    """$HOME, where NCCL 2.30 and later look."""
    home = os.environ.get("HOME")
    return Path(home) if home else None


def database_home() -> Path | None:
    """This user's home in the password database, where NCCL up to 2.29 looks."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def homes() -> list[Path]:
    """Those of the two that exist; a directory that is both appears once."""
    found: dict[Path, Path] = {}
    for home in (variable_home(), database_home()):
        if home is not None and home.is_dir():
            found.setdefault(home.resolve(), home)
    return list(found.values())


def user_confs() -> list[Path]:
    """The .nccl.conf of each of :func:`homes`."""
    return [home / USER_CONF_NAME for home in homes()]


def confs_read_by(version: tuple[int, int, int] | None) -> list[Path]:
    """The files that an NCCL of this version (None: a current one) reads here; a setting in the first one wins."""
    if version is None:
        version = _CURRENT
    named = os.environ.get("NCCL_CONF_FILE")
    if named and version >= discovery.FIRST_WITH_CONF_FILE:
        return [Path(named), SYSTEM_CONF]
    home = variable_home() if version >= discovery.FIRST_WITH_HOME_VARIABLE else database_home()
    return ([home / USER_CONF_NAME] if home is not None else []) + [SYSTEM_CONF]
