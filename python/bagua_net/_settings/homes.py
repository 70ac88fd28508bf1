# SPDX-License-Identifier: MIT
"""The configuration files that NCCL and RCCL read, in their order; they depend on the version (``_nccl.discovery``)."""

from __future__ import annotations

import os
import pwd
import shlex
from pathlib import Path

from .._nccl import discovery

SYSTEM_CONF = Path("/etc/nccl.conf")
RCCL_SYSTEM_CONF = Path("/etc/rccl.conf")

_USER_CONF_NAMES = {discovery.NCCL: ".nccl.conf", discovery.RCCL: ".rccl.conf"}

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
        if home is not None and os.path.isdir(home):
            found.setdefault(home.resolve(), home)
    return list(found.values())


def is_irregular(path: Path) -> bool:
    """Is something there that is no regular file, as /dev/null?"""
    return os.path.exists(path) and not os.path.isfile(path)


def instead_of_conf_file(named: Path) -> str:
    """What to do where NCCL_CONF_FILE names this file: it turns files off where it names a device."""
    if is_irregular(named):
        return "unset NCCL_CONF_FILE, or use `bagua-net run -- COMMAND`"
    return f"use `bagua-net enable --conf {shlex.quote(str(named))}`"


def remedies(layer: str | None) -> tuple[str, str]:
    """How to mend, and how to take away, an NCCL_NET_PLUGIN of this layer: a file, or the environment, which beats all
    files."""
    if layer is None or not Path(layer).is_absolute():
        return "unset NCCL_NET_PLUGIN", "unset NCCL_NET_PLUGIN"
    option = f" --conf {shlex.quote(layer)}"
    for product in (discovery.NCCL, discovery.RCCL):
        if Path(layer) in user_confs(product):
            option = ""
        elif Path(layer) == system_conf(product):
            option = " --system"
    return f"`bagua-net enable{option}` again", f"`bagua-net disable{option}`"


def user_conf_name(nccl: discovery.Nccl | None) -> str:
    """The name of the file that this library (None: an NCCL) reads in the home."""
    return _USER_CONF_NAMES[nccl.product if nccl else discovery.NCCL]


def user_confs(product: str = discovery.NCCL) -> list[Path]:
    """The product's file in each of :func:`homes`."""
    return [home / _USER_CONF_NAMES[product] for home in homes()]


def system_conf(product: str = discovery.NCCL) -> Path:
    """The product's file for all users."""
    return RCCL_SYSTEM_CONF if product == discovery.RCCL else SYSTEM_CONF


def confs_read_by(nccl: discovery.Nccl | None) -> list[Path]:
    """The files that this library (None: a current NCCL) reads here; a setting in the first one wins."""
    product = nccl.product if nccl else discovery.NCCL
    version = (nccl.version if nccl else None) or _CURRENT
    with_conf_file = (
        discovery.FIRST_RCCL_WITH_CONF_FILE if product == discovery.RCCL else discovery.FIRST_WITH_CONF_FILE
    )
    named = os.environ.get("NCCL_CONF_FILE")
    if named and version >= with_conf_file:
        return [Path(named), system_conf(product)]
    home = variable_home() if version >= discovery.FIRST_WITH_HOME_VARIABLE else database_home()
    return ([home / user_conf_name(nccl)] if home is not None else []) + [system_conf(product)]
