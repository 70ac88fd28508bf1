# SPDX-License-Identifier: MIT
"""Where a variable of a job comes from: the environment, then the configuration files that its NCCL reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .._nccl import discovery
from . import conf, homes

ENVIRONMENT = "environment"
#: What the plugin reads, besides NCCL_DEBUG.
_PREFIXES = ("BAGUA_NET_", "NCCL_SOCKET_")


@dataclass(frozen=True)
class Setting:
    """A variable as NCCL will see it in a job of this environment."""

    name: str
    value: str | None
    #: "environment", "activate()", or the path of the configuration file that sets it; None: nothing sets it
    layer: str | None


Layers = list[tuple[str, dict[str, str]]]


def read(nccl: discovery.Nccl | None) -> Layers:
    """(name, settings) of each layer, the strongest first: the environment, then the files that this NCCL reads."""
    found: Layers = [(ENVIRONMENT, dict(os.environ))]
    for path in homes.confs_read_by(nccl.version if nccl else None):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # NCCL goes on without a file that it cannot read, too
        found.append((str(path), conf.parse(content)))
    return found


def of_a_job() -> Layers:
    """Those of a job of this environment."""
    return read(discovery.find())


def effective(name: str, among: Layers) -> Setting:
    """The variable's value in the strongest layer that has it."""
    for layer, settings in among:
        if name in settings:
            return Setting(name, settings[name], layer)
    return Setting(name, None, None)


def names(prefixes: str | tuple[str, ...], among: Layers) -> list[str]:
    """The variables of any layer that begin so, sorted."""
    return sorted({name for _, settings in among for name in settings if name.startswith(prefixes)})


def from_files(among: Layers) -> list[Setting]:
    """What the plugin reads and only a file sets: NCCL puts it into the environment, and without NCCL nobody does."""
    found = (effective(name, among) for name in names(_PREFIXES, among))
    return [setting for setting in found if setting.layer != ENVIRONMENT]


def apply(among: Layers) -> list[Setting]:
    """Puts into this process's environment what NCCL would, as far as the plugin reads it; what is there stays.

    Returns:
        what it put there.
    """
    added = from_files(among)
    os.environ.update({setting.name: setting.value or "" for setting in added})
    return added


@contextmanager
def applied(among: Layers) -> Iterator[None]:
    """This process's environment as NCCL would make it, as far as the plugin reads it. For one thread at a time."""
    added = apply(among)
    try:
        yield
    finally:
        for setting in added:
            del os.environ[setting.name]
